"""Files before they are read or written: what is no file, what is in the way, where nothing can be
written.  Imports no torch.
"""

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

from construct.errors import BadModelFile, naming, one_line, printable

FilePath = str | os.PathLike[str]


def regular_file(path: FilePath) -> None:
    """Check that a path is a regular file, without opening it: opening a pipe would block.

    Raises:
        BadModelFile: it is not.
    """
    with naming(path):
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116  Path(path) would already fail on some names
        except FileNotFoundError:
            raise BadModelFile("no such file", "check the path") from None
        except (OSError, ValueError) as error:
            raise BadModelFile(_reason(error), "check the path") from None
        if stat.S_ISDIR(mode):
            raise BadModelFile("is a directory, not a model file", "give the file in it")
        if not stat.S_ISREG(mode):
            raise BadModelFile("is not a regular file", "give a file that torch.save wrote")


def check_destination(
    path: FilePath,
    inputs: Sequence[FilePath],
    force: bool,
    ours: Callable[[Path], bool],
    reason: str,
    flag: str = "-o",
    taken: Sequence[Path] = (),
) -> None:
    """Check, before the long work, that the output can be written and replaces none of the user's
    files.

    Args:
        path: the path of the output.
        inputs: the files that are read.
        force: whether any file may be replaced.
        ours: whether a file is earlier output of this project, unchanged, which may be replaced.
        reason: why it is not, for the message.
        flag: the option that gave the path.
        taken: where other output goes.

    Raises:
        BadModelFile: it cannot be written, or would replace an input, another file or other output.
    """
    another = f"give another name with {flag}"
    path = Path(path)
    try:
        with naming(path):
            if any(path.resolve() == other.resolve() for other in taken):
                raise BadModelFile("is where other output goes", another)
            if path.exists():
                if any(path.samefile(other) for other in inputs):
                    raise BadModelFile("is an input itself", another)
                if not path.is_file():
                    raise BadModelFile("is there, and is not a file", another)
                if not force and not ours(path):
                    raise BadModelFile(
                        f"exists and is not our own output: {reason}",
                        option=f"{another}, or --force",
                    )
            if not path.parent.is_dir():
                raise BadModelFile(f"there is no folder {printable(path.parent)}", "make it first")
            with NamedTemporaryFile(dir=path.resolve().parent):
                pass
    except (OSError, RuntimeError) as error:  # RuntimeError: a symlink loop
        raise not_written(path, error, f"give another place with {flag}") from error


def not_written(path: object, error: Exception, then: str) -> BadModelFile:
    """The error for a file that cannot be written; ``then`` says what to do, or what was changed."""
    return BadModelFile(f"{printable(path)}: cannot be written: {_reason(error)}", then)


def _reason(error: Exception) -> str:
    return one_line(getattr(error, "strerror", None) or error)
