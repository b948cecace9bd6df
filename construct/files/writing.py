"""Model files, written whole or not at all."""

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from construct.attention import MHSA
from construct.errors import BadModelFile, described, one_line, shown
from construct.files.allow_list import allowing, foreign, walked
from construct.files.layer_files import to_safetensors
from construct.files.reading import regular_file
from construct.weights import NAMES


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a module so that :func:`load` reads it back; whatever stood there is replaced in one step or not touched.

    Args:
        model: made of torch.nn classes and attention layers of this project.
        path: of the file.  One that ends in ``.safetensors`` holds the tensors and the geometry of the attention layers, and
            nothing else of the module; any other is a file of torch.save.

    Raises:
        BadModelFile: the module holds something that could not be read back safely; or the name is that of a program
            (``.pt2``, ``.onnx``), which needs an input size: see :mod:`construct.files.export`.
        OSError: the file cannot be written.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"save takes an nn.Module, not {type(model).__name__}")
    worked_out = [
        path for path, module in model.named_modules() if isinstance(module, MHSA) and is_parametrized(module)
    ]
    if worked_out:
        raise BadModelFile(
            f"{shown(str(path))}: tensors of {shown(worked_out[0] or 'the layer')} are worked out from others "
            "(construct.modules.learning.settle makes plain tensors of them)"
        )
    suffix = Path(path).suffix
    if suffix in (".pt2", ".onnx"):
        raise BadModelFile(
            f"{shown(str(path))}: {suffix} takes the size of an input (use construct.files.export.to_{suffix[1:]})"
        )
    write(to_safetensors(model) if suffix == ".safetensors" else model, path)


def written_here(path: str | os.PathLike[str]) -> bool:
    """Whether a file is earlier output of this project: it names our layer, or its tensors bear our names.

    Found by reading the pickle's instructions, or by the names of our tensors in a file of another kind; nothing is carried
    out.
    """
    try:
        with regular_file(path).open("rb") as file:
            if Path(path).suffix in (".safetensors", ".pt2", ".onnx"):
                content = mmap(file.fileno(), 0, access=ACCESS_READ)
                return all(content.find(name.encode()) >= 0 for name in ("w_val", "w_out", "b_out"))
            walker = walked(file)
    except (OSError, ValueError):
        return False
    ours = f"{MHSA.__module__}.{MHSA.__qualname__}" in walker.names
    return ours or all(any(text.rpartition(".")[2] == name for text in walker.texts) for name in NAMES)


def beyond_ours(path: Path) -> list[str]:
    """What a file of torch.save names beyond the classes that anybody may read."""
    with path.open("rb") as file, allowing() as ours:
        return foreign(walked(file), ours)


def check_destination(
    path: str | os.PathLike[str],
    source: str | os.PathLike[str],
    force: bool,
    ours: Callable[[Path], bool] = written_here,
    flag: str = "-o",
) -> Path:
    """Make sure, before the long work, that the output can be written and that nothing of the user's is lost.

    Args:
        path: of the output.
        source: the model that is being read.
        force: whether a foreign file may be replaced.
        ours: tells earlier output of this project from a foreign file.
        flag: the option that gave the path.

    Raises:
        BadModelFile: it cannot, or it would replace the input or a foreign file.
    """
    name, path = shown(str(path)), Path(path)
    other = "" if flag == "-o" else f" with {flag}"
    try:
        if path.exists():
            if path.samefile(source):
                raise BadModelFile(f"{name}: is the input itself (give another name with {flag})")
            if not path.is_file():
                raise BadModelFile(f"{name}: is there, and is not a file (give another name with {flag})")
            if not force and not ours(path):
                raise BadModelFile(
                    f"{name}: exists and is not our own output", option=f"give another name{other}, or --force"
                )
        if not path.parent.is_dir():
            raise BadModelFile(f"{name}: there is no folder {shown(str(path.parent))} (make it first)")
        temporary = _temporary(path.resolve())
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        temporary.unlink()
    except (OSError, ValueError, RuntimeError) as error:  # the last for a link that leads to itself
        if isinstance(error, BadModelFile):
            raise
        what = one_line(getattr(error, "strerror", None) or error)
        raise BadModelFile(f"{name}: cannot be written: {what} (give another place with {flag})") from error
    return path


def write(content: nn.Module | dict[str, Tensor] | bytes, path: str | os.PathLike[str]) -> None:
    """Write a module or a state dict, or bytes as they are: into a new file beside ``path``, to the disk, and then in one
    step into place.

    Raises:
        BadModelFile: the content could not be read back safely.
        OSError: the file cannot be written; what stood there is as it was.
    """
    with staged(path, content):
        pass


@contextlib.contextmanager
def staged(
    path: str | os.PathLike[str], content: nn.Module | dict[str, Tensor] | bytes, allowed: Collection[str] = ()
) -> Iterator[Path]:
    """Write as :func:`write` does, and go into place at the end of the ``with`` block, if it ends well.

    Args:
        path: of the file.
        content: of the file.
        allowed: names of classes that it may hold beyond those that anybody can read back.

    Yields:
        The file beside ``path`` that is whole and on the disk already.
    """
    path = Path(path).resolve()  # a link stays a link
    temporary = _temporary(path)
    try:
        with os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666), "w+b") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                _save_into(file, content, shown(str(path)), allowed)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _save_into(file: BinaryIO, content: nn.Module | dict[str, Tensor], name: str, allowed: Collection[str]) -> None:
    """With torch.save, and make sure that it can be read back."""
    stream = _Stream(file)
    try:
        torch.save(content, stream)  # type: ignore[arg-type]
    except Exception as error:
        if stream.failure is None:
            raise BadModelFile(f"{name}: cannot be saved: {described(error)}") from error
    if stream.failure is not None:
        raise stream.failure
    file.flush()
    with allowing() as ours:
        others = foreign(walked(file), ours | set(allowed))
    if others:
        raise BadModelFile(
            f"{name}: not saved, it could not be read back safely, for it holds {one_line(', '.join(others))} "
            "(save its state dict)"
        )


class _Stream:
    """A file that remembers why it failed: torch would only say that a position is unexpected, even after Ctrl-C."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.failure: BaseException | None = None

    def write(self, data: Any) -> int:
        if self.failure is None:
            try:
                self.file.write(data)
            except BaseException as error:
                self.failure = error
        return len(data)

    def flush(self) -> None:
        """Nothing is held back here."""


def _temporary(path: Path) -> Path:
    """A name in the same folder that no other run uses, and that is not too long wherever the path's own is not."""
    # What is too long is counted in bytes.
    start = os.fsencode(path.name)[:100].decode(sys.getfilesystemencoding(), "ignore")
    return path.with_name(f".{start}.{secrets.token_hex(8)}.tmp")
