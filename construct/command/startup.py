"""What ``python -m construct.from_conv`` does first: signals until torch is imported, and whether
our files are ours.

It uses only the standard library, because other files of ours may be gone: a parsing library is
called ``construct`` as well.
"""

import os
import signal
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType

DISTRIBUTION = "conv-as-attention"
VERSION = f"{DISTRIBUTION} 0.1.0"
COMMAND = "python -m construct.from_conv"
OVERWRITTEN = (
    f"the package construct is not that of {DISTRIBUTION}: the distribution construct has overwritten it, or took it along when "
    "it was removed (pip uninstall construct, then pip install --force-reinstall --no-deps . in our folder)"
)
INTERRUPTED = 130
"""The exit code after Ctrl-C or SIGTERM."""
_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def require_ours() -> None:
    """Refuse to run with another package's files, or with a module of the user's in place of our
    package ``verify``.

    Raises:
        ImportError: that is so; the command prints the line and exits.
    """
    spec = PathFinder.find_spec("verify")
    if getattr(sys.modules["construct"], "DISTRIBUTION", None) != DISTRIBUTION:
        message = OVERWRITTEN
    elif (
        spec is None
        or not spec.origin
        or Path(spec.origin).resolve().parents[1] == Path(__file__).resolve().parents[2]
    ):
        return
    else:
        message = (
            f"{spec.origin!r} hides our package verify (rename it, or run from another folder)"
        )
    running = getattr(sys.modules["__main__"], "__spec__", None)
    if running is not None and running.name == "construct.from_conv":
        sys.stderr.write(f"error: {message}\n")
        raise SystemExit(2)
    raise ImportError(message)


def require_torch() -> None:
    """Import torch.

    Raises:
        ImportError: it is missing, or too old.
    """
    import torch

    if torch.__version__ < "2.10.dev0":
        raise ImportError(
            f"construct needs torch 2.10 or newer, and this is {torch.__version__} (pip install 'torch>=2.10')"
        )


def exit_on_signals() -> None:
    """End the process at once on Ctrl-C or SIGTERM: Python would answer one during the import of
    torch with a traceback.
    """
    for number, handler in _USUAL.items():
        if signal.getsignal(number) is handler:  # else it is ignored, or handled elsewhere
            signal.signal(number, _exit)


def restore_signals() -> None:
    """Restore Python's own handlers, for a command that handles both signals itself."""
    for number, handler in _USUAL.items():
        if signal.getsignal(number) is _exit:
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    # No file is open yet, and cleanup handlers of half-imported modules could fail.
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
