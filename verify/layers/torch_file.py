"""What a file of torch holds, as plain data: what ``torch.load(weights_only=True)`` returns is the
definition of it.

The checker asks for it, by :func:`contents`, for such files alone.  The project's one reader of
torch's files makes the call; classes that it does not know are not imported.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from construct.attention import MHSA
from construct.errors import BadModelFile
from construct.files.allowed import allowed_classes
from construct.files.layer_files import records_in
from construct.files.reading import ModelFile, read
from construct.modules.traversal import every_module
from verify.layers.fields import TENSORS, read_convolution
from verify.layers.overrides import require_plain_attention
from verify.layers.reparametrized import CONVOLUTIONS, base_of, folded_convolution
from verify.oracle import GEOMETRY, Unreadable, Vector
from verify.recheck.strict_input import Record

JUDGED = (*CONVOLUTIONS, MHSA)
Tensors = dict[str, tuple[str, Vector, Any]]
"""Type, shape and little-endian bytes of tensors, by name."""


def contents(
    path: str | os.PathLike[str], key: str | None = None
) -> tuple[dict[str, Tensors], Record, tuple[str, ...]]:
    """The tensors of a file and what it states, both by the path of a layer, and notes.

    Args:
        path: a file of ``torch.save``: a module, a state dict, or a checkpoint with one.
        key: the key of the network in a checkpoint of several.

    Returns:
        The tensors of each layer, but those of torch's own modules that are not convolutions; and
        kind and geometry, ``{"kind": …, **geometry}``.  The kind is "unknown" if class or
        attributes are not torch's own.

    Raises:
        ValueError: it cannot be read without running its code, or holds no network.
    """
    try:
        file = read(path, inert=True, key=key)
    except BadModelFile as error:
        # What a conversion would allow is not a remedy here.
        advice = "" if re.search(r"\b(trust|allow|model|layers)=", error.remedy) else error.remedy
        advice += "; or any" if advice else "any"
        raise ValueError(
            f"{error.what} ({advice} .pt or .safetensors file with the same tensors will do)"
        ) from error
    groups: dict[str, Tensors] = {}
    stated: Record = {}
    if isinstance(file.content, nn.Module):
        for path_of, module in _modules(file).items():
            held = {**module._parameters, **module._buffers}
            # torch's own, and no convolution; a class of the same name in a file is not torch's
            other = type(module) in allowed_classes() and not isinstance(module, JUDGED)
            if held and not other:
                groups[path_of] = {
                    name: _plain(tensor) for name, tensor in held.items() if tensor is not None
                }
                stated[path_of] = _stated(module)
    else:
        for name, tensor in file.content.items():
            of, _, last = name.rpartition(".")
            groups.setdefault(of, {})[last] = _plain(tensor)
        stated = records_in(file.content)
    return (
        groups,
        stated,
        (*file.notes, "read by torch's own loader (torch.load with weights_only=True)"),
    )


def _modules(file: ModelFile) -> dict[str, nn.Module]:
    """Every module in a file under each of its paths; one that no path reaches has a name in
    parentheses.
    """
    assert isinstance(file.content, nn.Module)
    modules: dict[str, nn.Module] = {}
    for path, module in (
        *file.content.named_modules(remove_duplicate=False),
        *every_module(file.content),
    ):
        if modules.setdefault(path, module) is not module:
            raise ValueError(f"two modules have the path {path!r}")
    reached = {id(module) for module in modules.values()}
    hidden = [module for module in file.modules if id(module) not in reached]
    return modules | {f"({n}: reached by no path)": module for n, module in enumerate(hidden)}


def _plain(tensor: torch.Tensor) -> tuple[str, Vector, Any]:
    """Type, shape and the little-endian bytes of the numbers, row-major; not by the certifier's
    code.
    """
    if tensor.is_meta:
        raise ValueError("a tensor is on the meta device, and has no numbers")
    numbers = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return (
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        numbers.view(torch.uint8).numpy().data,
    )


def _stated(module: nn.Module) -> Mapping[str, Any]:
    """The class and geometry of a layer, if its call runs no other code than its class's own."""
    layer: Any = module
    try:
        if isinstance(module, MHSA):
            require_plain_attention(module, TENSORS)
            radix = {} if layer.radix is None else {"radix": [*layer.radix]}
            return {"kind": "MHSA", **_geometry(layer.geometry), **radix}
        if isinstance(module, tuple(CONVOLUTIONS)) and folded_convolution(module)[0] is module:
            read_convolution(module)
            return {"kind": base_of(module).__name__, **_geometry(layer)}
    except Unreadable:
        pass
    return {"kind": "unknown"}


def _geometry(layer: Any) -> Record:
    """The geometry as JSON types; torch takes a single number, even in a list, for all axes.

    `verify.oracle.stated_geometry` does the same for the certifier: here it stands again, so
    that no error is shared.
    """
    stated = {name: getattr(layer, name) for name in GEOMETRY}
    stated = {
        name: list(value) if isinstance(value, tuple | list) else value
        for name, value in stated.items()
    }
    dims = len(stated["kernel_size"])
    for name in ("stride", "padding", "dilation", "output_padding"):
        value = [stated[name]] if isinstance(stated[name], int) else stated[name]
        stated[name] = value * dims if isinstance(value, list) and len(value) == 1 else value
    return stated
