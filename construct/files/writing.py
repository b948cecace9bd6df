"""``construct.save``: writes a model file atomically, after checking that it can be read back."""

import contextlib
import io
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from construct.errors import BadModelFile, describe, naming, one_line, printable
from construct.files.allowed import NOTHING, Allowed, allow_options, import_allowed, listed
from construct.files.archives import check_archive
from construct.files.destination import FilePath
from construct.files.layer_files import attention_in, to_safetensors


def save(model: nn.Module, path: FilePath, *, allow: Iterable[str] = ()) -> None:
    """Write a module so that :func:`construct.load` reads it back; an existing file, whatever it
    holds, is replaced atomically.

    >>> import tempfile, torch, construct
    >>> path = tempfile.mkdtemp() + "/layer.safetensors"
    >>> construct.save(construct.conv_to_mhsa(torch.nn.Conv2d(1, 2, 3)), path)
    >>> construct.load(path)
    MHSA(1, 2, kernel_size=(3, 3), stride=(1, 1), heads=9, head_dim=1, execution='auto')

    Args:
        model: made of torch.nn classes and attention layers of this project.
        path: the file to write.  A name that ends in ``.safetensors`` stores only the tensors and
            the geometry of attention layers; any other name is written with torch.save.
        allow: more classes of which the module may be, as :func:`construct.load` takes them;
            reading it back needs them, too.

    Raises:
        BadModelFile: the module could not be read back safely; or the name is that of an exported
            program (``.pt2``, ``.onnx``), which needs an input size: see
            :mod:`construct.files.export`.
        OSError: the file cannot be written.
        TypeError: ``model`` is not a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"save takes an nn.Module, not {type(model).__name__}")
    suffix = Path(path).suffix.lower()
    with naming(path):
        for name, layer in attention_in(model).items():
            which = printable(name or "the layer")
            if is_parametrized(layer):
                raise BadModelFile(
                    f"tensors of {which} are parametrized",
                    "construct.modules.learning.settle makes plain tensors of them",
                )
            encoding = layer.encoding  # refuses a table of other taps
            if hasattr(layer, "own_encoding"):
                raise BadModelFile(
                    f"the encoding of {which} is {encoding.name}",
                    "save its state dict, and load it into a layer with that encoding",
                )
        if suffix in (".pt2", ".onnx"):
            raise BadModelFile(
                f"{suffix} takes the size of an input",
                f"use construct.files.export.to_{suffix[1:]}",
            )
        if suffix == ".safetensors":
            content = to_safetensors(model)
        else:
            content = archived(model, import_allowed(allow))
    write(content, path)


def unlisted_names_in(content: bytes) -> list[str]:
    """The names in what torch.save wrote that are not on the allow-list."""
    names = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content))
    return sorted({*names} - listed().keys())


def write(content: bytes, path: FilePath) -> None:
    """Write a file atomically: into a temporary file next to ``path``, fsynced, then renamed.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    with staged(path, content):
        pass


@contextlib.contextmanager
def staged(path: FilePath, content: bytes) -> Iterator[Path]:
    """Write as :func:`write` does, but rename into place only when the ``with`` block ends without
    an error.

    Yields:
        The temporary file, complete and fsynced.
    """
    path = Path(path).resolve()  # a link stays a link
    temporary = path.with_name(f".construct.{secrets.token_hex(16)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
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


def archived(content: nn.Module | dict[str, Tensor], allowed: Allowed | None = NOTHING) -> bytes:
    """What torch.save writes; it may hold what is ``allowed`` beyond the allow-list, anything if
    None.

    Raises:
        BadModelFile: it cannot be saved, or could not be read back safely.
    """
    stream = io.BytesIO()
    try:
        torch.save(content, stream)  # type: ignore[arg-type]
    except Exception as error:
        raise BadModelFile(f"cannot be saved: {describe(error)}") from error
    check_archive(stream)
    names = unlisted_names_in(stream.getvalue())
    more = [name for name in names if allowed and name not in allowed.of(names)]
    if more:
        what = (
            f"not saved, it could not be read back safely, for it holds {one_line(', '.join(more))}"
        )
        remedy = "save its state dict with torch.save"
        choices = allow_options(more)
        if choices:
            remedy = f"give allow={choices!r}, or {remedy}"
        raise BadModelFile(what, remedy)
    return stream.getvalue()
