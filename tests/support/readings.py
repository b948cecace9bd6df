"""How each reader reads the bytes of a file: torch.load, the command's reader, and the checker's."""

import io
import pickle
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn
from torch._weights_only_unpickler import _get_allowed_globals

from construct.attention import MHSA
from construct.files.allowed import listed
from construct.files.checkpoints import unwrap
from construct.files.reading import read
from construct.modules.convolutions import BASES
from verify.layers.fields import stated_geometry
from verify.recheck.weight_files import BYTES, StoredLayer, layers_in

LAYERS = (*BASES, MHSA)


def by_torch(data: bytes) -> Any:
    """The content as torch reads it, or safetensors for its own format."""
    if data[8:9] == b"{":
        return load_safetensors(data)
    with torch.serialization.safe_globals([(value, name) for name, value in listed().items()]):
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


class Own(nn.Module):
    """Stand-in for any class that only the file knows: accepts any arguments."""

    def __init__(self, *_: Any):
        super().__init__()

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        """Accept the value."""

    def extend(self, values: Any) -> None:
        """Accept the values."""

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict) and "_modules" in state:
            super().__setstate__(state)


def by_pickle(data: bytes) -> Any:
    """The content as torch reads it with any classes allowed."""
    known = listed().keys() | _get_allowed_globals().keys()

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            module = {"__builtin__": "builtins"}.get(module, module)
            return super().find_class(module, name) if f"{module}.{name}" in known else Own

    reader = types.ModuleType("reader")
    reader.Unpickler, reader.load = Unpickler, lambda f, **_: Unpickler(f).load()  # type: ignore[attr-defined]
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False, pickle_module=reader)


def by_command(data: bytes, path: Path) -> nn.Module | dict[str, Tensor]:
    """The content that the command would convert; writes the file to the path."""
    path.write_bytes(data)
    return read(path).content


def by_checker(data: bytes) -> dict[str, StoredLayer]:
    """The layers that a recheck finds, after reading their numbers."""
    layers = layers_in(io.BytesIO(data), "f")
    for layer in layers.values():
        for stored in layer.tensors.values():
            if stored.dtype in BYTES:
                stored.read()
    return layers


def bits(tensor: Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """A tensor's format, shape and bytes."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.copy_(tensor.detach().reshape(-1))
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


def differences(content: Any, layers: dict[str, StoredLayer]) -> list[str]:
    """The paths at which the checker's layers differ from torch's result."""
    content = unwrapped(content)
    messages = []
    if isinstance(content, nn.Module):
        paths = [path for path, module in content.named_modules() if type(module) in LAYERS]
        messages += [f"the checker has no {path!r}" for path in paths if path not in layers]
        for path, layer in layers.items():
            if not path.startswith("(not among the modules"):
                module: Any = content
                for name in path.split(".") if path else ():
                    module = module._modules[name]
                held = {**module._parameters, **module._buffers}
                messages += [
                    f"{path}: {word}" for word in _compared(layer, {n: t for n, t in held.items() if t is not None})
                ]
                if layer.geometry is not None and layer.geometry != stated_geometry(module):
                    messages.append(f"{path}: another geometry")
        return messages
    held = {
        f"{path}.{name}" if path else name: (path, name) for path, layer in layers.items() for name in layer.tensors
    }
    for key, tensor in content.items():
        if key.rpartition(".")[2] == "weight" and tensor.dim() > 2 and key not in held:
            messages.append(f"the checker has no {key!r}")
    for path, layer in layers.items():
        under = {name: content[key] for key, (of, name) in held.items() if of == path and key in content}
        messages += [f"{path}: {word}" for word in _compared(layer, under)]
    return messages


def _compared(layer: StoredLayer, tensors: dict[str, Tensor]) -> list[str]:
    messages = [f"other tensors: {[*layer.tensors]}, {[*tensors]}"] if {*layer.tensors} != {*tensors} else []
    for name in {*layer.tensors} & {*tensors}:
        stored, (dtype, shape, data) = layer.tensors[name], bits(tensors[name])
        if stored.dtype in BYTES:
            numbers: np.ndarray = stored.read()
            if (stored.dtype, numbers.shape, numbers.tobytes()) != (dtype, shape, data):
                messages.append(f"{name} differs")
        elif dtype in BYTES:
            messages.append(f"{name} is {dtype}, not {stored.dtype}")
    return messages


def alike(one: nn.Module | dict[str, Tensor], other: nn.Module | dict[str, Tensor]) -> bool:
    """Whether two contents are of the same kind, with the same names and bits."""
    if isinstance(one, nn.Module) and isinstance(other, nn.Module):
        names = [[(path, type(module)) for path, module in model.named_modules()] for model in (one, other)]
        return names[0] == names[1] and alike(one.state_dict(), other.state_dict())
    if isinstance(one, nn.Module) or isinstance(other, nn.Module):
        return False
    # Attributes of a dict may hide its methods.
    return {key: bits(x) for key, x in dict.items(one)} == {key: bits(x) for key, x in dict.items(other)}


def unwrapped(content: Any) -> Any:
    """The model inside a checkpoint."""
    return unwrap(content)[0]
