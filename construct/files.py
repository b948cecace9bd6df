"""Model files, read without running anything that they hold.

What can be read: what ``torch.save`` wrote of a module made of torch.nn classes and of this project's attention layers, or
of a state dict.  The content decides, not the file's name.  Reading is ``torch.load(weights_only=True)`` with a list of exact
classes, and there is no other way in: a file that needs more is refused, and its classes are named without being loaded.
"""

import hashlib
import os
import stat
import warnings
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor, nn

from construct.attention import EXECUTIONS, MHSA
from construct.errors import BadModelFile
from construct.geometry import ConvGeometry
from construct.network import every_module
from construct.pickles import BROKEN, ZIP, allowing, foreign_classes
from construct.plain_text import described, one_line, shown
from construct.weights import NAMES, MHSAWeights

NEEDS_ARCHITECTURE = "a state dict without its architecture: give --arch pkg.module:factory or --model-file net.py:Net"


@dataclass(frozen=True)
class ModelFile:
    """What a file held.

    Attributes:
        path: of the file.
        sha256: of its bytes, in hexadecimal.
        content: a module, or a state dict.
    """

    path: Path
    sha256: str
    content: nn.Module | dict[str, Tensor]


def load(path: str | os.PathLike[str]) -> nn.Module:
    """Read a module: this project's output, or any module made of torch.nn classes.  Nothing that the file holds is run.

    Args:
        path: of a file that ``construct.save`` or ``torch.save`` wrote.

    Returns:
        The module, on the CPU.

    Raises:
        BadModelFile: there is no such file, it is no model, it is damaged, it holds classes that are not allowed, or it is
            a state dict.
    """
    content = read(path).content
    if not isinstance(content, nn.Module):
        raise BadModelFile(f"{shown(str(path))}: {NEEDS_ARCHITECTURE}")
    return content


def regular_file(path: str | os.PathLike[str]) -> Path:
    """Make sure that there is an ordinary file, without opening it: opening a pipe would wait, a device never end.

    Raises:
        BadModelFile: there is none.
    """
    name = shown(str(path))
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116  Path(path) would already fail on some names
    except FileNotFoundError:
        raise BadModelFile(f"{name}: no such file (check the path)") from None
    except (OSError, ValueError) as error:
        raise BadModelFile(f"{name}: {one_line(getattr(error, 'strerror', None) or error)} (check the path)") from None
    if stat.S_ISDIR(mode):
        raise BadModelFile(f"{name}: is a directory, not a model file (give the file in it)")
    if not stat.S_ISREG(mode):
        raise BadModelFile(f"{name}: is not a regular file (give a file that torch.save wrote)")
    return Path(path)


def read(path: str | os.PathLike[str]) -> ModelFile:
    """Read a module or a state dict; nothing that the file holds is run.

    Raises:
        BadModelFile: see :func:`load`.
    """
    path, name = regular_file(path), shown(str(path))
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            content = _read_open(file, name)
    except OSError as error:
        raise BadModelFile(f"{name}: {one_line(error.strerror or error)} (check the file)") from error
    return ModelFile(path, digest, content)


def _read_open(file: BinaryIO, name: str) -> nn.Module | dict[str, Tensor]:
    start = file.read(4)
    file.seek(0)
    if not start:
        raise BadModelFile(f"{name}: the file is empty (save the model again)")
    if start == ZIP:
        _check_archive(file, name)
    elif start[:1] != b"\x80":
        raise BadModelFile(f"{name}: not a model file (give a file that torch.save wrote)")
    with allowing() as ours:
        foreign = foreign_classes(file, ours)
        if foreign:
            raise BadModelFile(
                f"{name}: holds classes that are not allowed: {one_line(', '.join(foreign))} "
                "(save a state dict and give --arch or --model-file)"
            )
        file.seek(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about old protocols; what matters is whether it can be read
                content = torch.load(file, map_location="cpu", weights_only=True)
        except MemoryError:
            raise
        except Exception as error:  # whatever a damaged stream makes of torch's reader
            # Not torch's own words: they advise to load the file unsafely.
            raise BadModelFile(
                f"{name}: the file is truncated, or not a model that can be read safely "
                "(save the model again with torch.save)"
            ) from error
    return _recognised(content, name)


def _check_archive(file: BinaryIO, name: str) -> None:
    """Refuse an archive that is torn, changed on the way (torch does not look), or not one of torch.save."""
    try:
        with zipfile.ZipFile(file) as archive:
            damaged, members = archive.testzip(), archive.namelist()
    except BROKEN as error:
        raise BadModelFile(f"{name}: the file is truncated or damaged (copy or download it again)") from error
    finally:
        file.seek(0)
    if damaged is not None:
        raise BadModelFile(
            f"{name}: CRC mismatch in {shown(damaged.partition('/')[2])}: the file has changed since it was written "
            "(copy or download it again)"
        )
    if any(member.endswith("/constants.pkl") for member in members):
        raise BadModelFile(f"{name}: a TorchScript archive (save the nn.Module itself, or its state dict)")
    if not any(member.endswith("/data.pkl") for member in members):
        raise BadModelFile(f"{name}: a zip archive, but not a model file (give a file that torch.save wrote)")


def _recognised(content: object, name: str) -> nn.Module | dict[str, Tensor]:
    """Hold what was read to what it claims to be: a file can name allowed classes and still lie about what is in them."""
    if isinstance(content, nn.Module):
        try:
            for path, module in every_module(content):
                if isinstance(module, MHSA):
                    _check_attention(module, path)
            content.state_dict()
        except Exception as error:  # attributes that are missing or of any type at all
            raise BadModelFile(f"{name}: its layers contradict themselves: {described(error)}") from error
        return content
    if isinstance(content, dict) and content:
        if all(isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items()):
            return content
        keys = ", ".join(repr(key) for key in list(content)[:4]) + (", ..." if len(content) > 4 else "")
        raise BadModelFile(f"{name}: a dict with the keys {one_line(keys)}, but not a state dict (save the state dict)")
    what = "an empty dict" if isinstance(content, dict) else f"an object of class {type(content).__name__}"
    raise BadModelFile(f"{name}: holds {what}, not a model (save the nn.Module, or its state dict)")


def _check_attention(layer: MHSA, path: str) -> None:
    """Build the layer again from its own parts, which checks every one of them.

    Raises:
        ValueError: some part is missing or does not fit.
    """
    stated = {field.name: vars(layer.geometry)[field.name] for field in fields(ConvGeometry)}
    parts = {name: getattr(layer, name) for name in NAMES}
    for name, part in parts.items():
        if not (isinstance(part, Tensor) and part.layout == torch.strided and part.is_floating_point()):
            raise ValueError(f"{path}: {name} is no dense tensor of floating-point numbers")
    if layer._execution not in EXECUTIONS:
        raise ValueError(f"{path}: no execution {layer._execution!r}")
    radix = layer.radix
    if not (radix is None or (isinstance(radix, tuple) and all(type(weight) is int for weight in radix))):
        raise ValueError(f"{path}: its radix is {radix!r}, not whole numbers")
    again = MHSA(ConvGeometry(**stated), MHSAWeights(**parts), layer._execution, radix)
    if again.heads != layer.heads:
        raise ValueError(f"{path}: says {layer.heads!r} heads, has {again.heads}")
