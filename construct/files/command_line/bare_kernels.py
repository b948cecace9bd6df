"""Builds convolutions from the kernels of a state dict, with the geometry that the user gives."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from construct.errors import BadModelFile, one_line, printable
from construct.files.isolation import refusing
from construct.files.layer_files import as_network
from construct.modules.convolutions import BASES
from construct.modules.traversal import joined

DEFAULTS: Mapping[str, Any] = {
    "stride": None,
    "padding": 0,
    "dilation": 1,
    "groups": 1,
    "padding_mode": "zeros",
}
"""The options for the geometry, which a state dict does not hold; the stride must be given."""


def geometry_flags(options: Namespace) -> list[str]:
    """The geometry options that the user gave, as typed."""
    return [
        f"--{flag.replace('_', '-')}" for flag in DEFAULTS if getattr(options, flag) is not None
    ]


def from_kernels(state: Mapping[str, Tensor], options: Namespace, notes: list[str]) -> nn.Module:
    """Bare modules with a convolution for every kernel of a state dict; ``notes`` say what was
    assumed.

    Raises:
        BadModelFile: no kernel, no ``--stride``, or a geometry that does not fit a kernel.
    """
    geometry = _geometry(options)
    kernels = {
        key.removesuffix("weight").removesuffix("."): weight
        for key, weight in state.items()
        if key.rpartition(".")[2] == "weight" and 3 <= weight.dim() <= 5
    }
    if not kernels:
        raise BadModelFile(
            "0 convolutions found: no tensor of 3 to 5 axes is called weight", "give --arch"
        )
    convolutions = {}
    used = set()
    for path, weight in kernels.items():
        d_out, d_in, *kernel_size = weight.shape
        base: Any = BASES[len(kernel_size) - 1]
        d_in *= geometry["groups"]
        with refusing(f"{printable(path) or 'its kernel'}: ", "give --arch"):
            conv = base(d_in, d_out, kernel_size, bias=False, device="meta", **geometry)
            for name in ("weight", "bias"):
                key = joined(path, name)
                if key in state:  # of any shape or type, which refuses this layer alone
                    floating = state[key].is_floating_point()
                    setattr(conv, name, nn.Parameter(state[key], requires_grad=floating))
                    used.add(key)
        convolutions[path] = conv
    root = as_network(convolutions)
    assumed = ", ".join(f"{flag} {value}" for flag, value in geometry.items())
    kind = f"a plain convolution with {assumed}, as the options say or by default"
    notes.append(f"kernels alone, each of {len(kernels)} assumed to be of {kind}")
    unused = [printable(key) for key in state if key not in used]
    if unused:
        notes.append(f"not used: {len(unused)} other tensors ({one_line(', '.join(unused), 120)})")
    return root


def _geometry(options: Namespace) -> dict[str, Any]:
    """The geometry of every kernel, by torch's names."""
    if options.stride is None:
        raise BadModelFile(
            f"{', '.join(geometry_flags(options))} without --stride",
            "a state dict does not hold it",
        )
    if options.input_size or options.example_inputs:
        raise BadModelFile(
            "kernels alone cannot be run", "leave out --input-size and --example-inputs"
        )
    geometry = {}
    for flag, default in DEFAULTS.items():
        value = getattr(options, flag) or default
        if isinstance(value, list):  # one number stands for all axes
            value = tuple(value) if len(value) > 1 else value[0]
        geometry[flag] = value
    return geometry
