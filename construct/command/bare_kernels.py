"""Builds convolutions from the kernels of a state dict, with the geometry that the user gives."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from construct.errors import BadModelFile, one_line, printable
from construct.files.layer_files import as_network
from construct.modules.convolutions import BASES

DEFAULTS: Mapping[str, Any] = {
    **{"stride": None, "padding": [0], "dilation": [1], "groups": 1, "padding_mode": "zeros"},
    **{"output_padding": [0], "transposed": False},
}
"""The options for the geometry, which a state dict does not hold; the stride must be given."""


def geometry_flags(options: Namespace) -> list[str]:
    """The geometry options that the user gave, as typed."""
    return [f"--{flag.replace('_', '-')}" for flag in DEFAULTS if getattr(options, flag) not in (None, False)]


def from_kernels(state: Mapping[str, Tensor], options: Namespace) -> tuple[nn.Module, tuple[str, ...]]:
    """Bare modules with a convolution for every kernel of a state dict, and notes on what was assumed.

    Raises:
        BadModelFile: no kernel, no ``--stride``, or a geometry that does not fit a kernel.
    """
    if options.stride is None:
        raise BadModelFile(f"{', '.join(geometry_flags(options))} without --stride", "a state dict does not hold it")
    if options.input_size or options.example_inputs:
        what = "kernels alone are no network that could be run"
        raise BadModelFile(what, "leave out --input-size and --example-inputs")
    if options.output_padding and not options.transposed:
        what = "--output-padding is for transposed convolutions"
        raise BadModelFile(what, "give --transposed, or leave it out")
    if options.transposed and isinstance(options.padding, str):
        what = f"--padding {options.padding} is for plain convolutions"
        raise BadModelFile(what, "give --padding in numbers")
    values = {flag: getattr(options, flag) for flag in DEFAULTS}
    geometry = {flag: DEFAULTS[flag] if value in (None, False) else value for flag, value in values.items()}
    kernels = {
        key: weight for key, weight in state.items() if key.rpartition(".")[2] == "weight" and 3 <= weight.dim() <= 5
    }
    if not kernels:
        raise BadModelFile("0 convolutions found: no tensor of 3 to 5 axes is called weight", "give --arch")
    used, convolutions = set(kernels), {}
    for key, weight in kernels.items():
        path = key.removesuffix("weight").removesuffix(".")
        bias = f"{path}.bias" if path else "bias"
        used.add(bias)
        convolutions[path] = _conv(weight, state.get(bias), geometry, path)
    try:
        root = as_network(convolutions)
    except BadModelFile as error:
        raise BadModelFile(str(error), "give --arch") from error
    assumed = ", ".join(f"{flag} {_text(value)}" for flag, value in geometry.items())
    notes = [f"kernels alone, each of {len(kernels)} assumed to have {assumed}, as the options say or by default"]
    left = [key for key in state if key not in used]
    if left:
        notes.append(f"not used: {len(left)} other tensors ({one_line(', '.join(map(printable, left)), 120)})")
    return root, tuple(notes)


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def _conv(weight: Tensor, bias: Tensor | None, geometry: Mapping[str, Any], path: str) -> nn.Module:
    dims, groups, transposed = weight.dim() - 2, geometry["groups"], geometry["transposed"]
    settings = {key: geometry[key] for key in ("padding_mode", "groups")}
    for key in ("stride", "padding", "dilation", *(("output_padding",) if transposed else ())):
        value = geometry[key]
        settings[key] = tuple(value) * (dims if len(value) == 1 else 1) if isinstance(value, list) else value
        if isinstance(value, list) and len(settings[key]) != dims:
            what = f"{printable(path) or 'its kernel'} has {dims} axes, not {len(value)}"
            raise BadModelFile(what, f"--{key.replace('_', '-')}")
    first, second = weight.shape[:2]
    d_in, d_out = (first, second * groups) if transposed else (second * groups, first)
    try:
        kind = BASES[dims - 1 + (3 if transposed else 0)]
        conv: Any = kind(d_in, d_out, tuple(weight.shape[2:]), bias=False, device="meta", **settings)  # type: ignore[arg-type]
        conv.weight = nn.Parameter(weight, requires_grad=weight.is_floating_point())
        if bias is not None:
            conv.bias = nn.Parameter(bias, requires_grad=bias.is_floating_point())
    except (ValueError, RuntimeError, ZeroDivisionError) as error:
        raise BadModelFile(f"{printable(path) or 'its kernel'}: {one_line(error)}", "give --arch") from error
    return conv
