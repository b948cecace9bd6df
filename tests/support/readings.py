"""Files of any content, and what torch.load and the project's reader make of the bytes of a file."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

import construct
from construct.errors import BadModelFile
from construct.files.allowed import listed
from construct.files.checkpoints import unwrap
from construct.files.reading import read


def written(content: Any, path: Path) -> Path:
    """The path, after saving the content there; bytes as they are."""
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    return path


def refusal(path: Path, **options: Any) -> str:
    """The line with which ``construct.load`` refuses a file; it names no option of the command."""
    with pytest.raises(BadModelFile) as caught:
        construct.load(path, **options)
    assert str(caught.value).isprintable()
    assert "--" not in str(caught.value)
    return str(caught.value)


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules have the same names, numbers and formats."""
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def by_torch(data: bytes) -> Any:
    """The content as torch reads it, or safetensors for its own format."""
    if data[8:9] == b"{":
        return load_safetensors(data)
    with torch.serialization.safe_globals([(value, name) for name, value in listed().items()]):
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def by_command(data: bytes, path: Path) -> nn.Module | dict[str, Tensor]:
    """The content that the command would convert; writes the file to the path."""
    path.write_bytes(data)
    return read(path).content


def bits(tensor: Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """A tensor's format, shape and bytes."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.copy_(tensor.detach().reshape(-1))
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


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
