"""What a file of torch holds, as plain data: what ``torch.load(weights_only=True)`` returns is the definition of it.

The checker asks for it, by :func:`contents`, for such files alone.  The project's one reader of torch's files makes the call;
classes that it does not know are not imported.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from construct.attention import MHSA
from construct.errors import BadModelFile
from construct.files.layer_files import records_in
from construct.files.reading import read
from construct.modules.traversal import every_module
from verify.layers.fields import TENSORS, bytes_of, read_convolution, stated_geometry
from verify.layers.overrides import Unreadable, require_plain_attention
from verify.layers.reparametrized import base_of, plain_convolution


def contents(
    path: str | os.PathLike[str], key: str | None = None
) -> tuple[dict[str, tuple[str, tuple[int, ...], Any]], dict[str, Any], tuple[str, ...]]:
    """The tensors of a file by name, what it states of layers by path, and notes.

    Args:
        path: a file of ``torch.save``: a module, a state dict, or a checkpoint with one.
        key: the key of the network in a checkpoint of several.

    Returns:
        ``{name: (dtype, shape, little-endian bytes)}`` and ``{path: {"kind": …, **geometry}}``; the kind of a layer whose class
        or attributes are not torch's own is "unknown".

    Raises:
        ValueError: it cannot be read without running its code, or holds no network.
    """
    try:
        file = read(path, inert=True, key=key)
    except BadModelFile as error:  # its remedies are those of a conversion
        raise ValueError(f"{error.what} (any .pt or .safetensors file with the same tensors will do)") from error
    if isinstance(file.content, nn.Module):
        modules = dict(every_module(file.content)) | dict(file.content.named_modules(remove_duplicate=False))
        tensors = {name: tensor for path, module in modules.items() for name, tensor in _tensors(path, module)}
        stated = {path: _stated(module) for path, module in modules.items() if module._parameters or module._buffers}
    else:
        tensors, stated = file.content, records_in(file.content, {})
    held = {name: (str(t.dtype).removeprefix("torch."), tuple(t.shape), bytes_of(t)) for name, t in tensors.items()}
    return held, stated, (*file.notes, "read by torch's own loader (torch.load with weights_only=True)")


def _tensors(path: str, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for registry in (module._parameters, module._buffers):
        for name, tensor in registry.items():
            if tensor is not None:
                yield f"{path}.{name}".removeprefix("."), tensor


def _stated(module: nn.Module) -> Mapping[str, Any]:
    """The class and geometry of a layer whose call runs no other code than its class's own."""
    try:
        if isinstance(module, MHSA):
            require_plain_attention(module, TENSORS)
            return {"kind": "MHSA", **stated_geometry(module)}
        if plain_convolution(module)[0] is module:
            read_convolution(module)
            return {"kind": base_of(module).__name__, **stated_geometry(module)}
    except Unreadable:
        pass
    return {"kind": "unknown"}
