"""Runs before the rest of the package: signal handlers for the seconds that importing torch takes, then torch's version check.

Without them Python answers Ctrl-C during the import with a traceback.  They are installed only for
``python -m construct.from_conv``: while Python imports this, its first argument is still ``-m``.
"""

import os
import signal
import sys
import threading
from types import FrameType

INTERRUPTED = 130
"""The exit code after Ctrl-C or SIGTERM."""
OLDEST_TORCH = (2, 10)


def exit_on_signals() -> None:
    """Let SIGINT and SIGTERM end the process with one line, until :func:`restore_signals`."""
    if sys.argv[:1] == ["-m"] and threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, or handled elsewhere
            signal.signal(signal.SIGINT, _exit)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _exit)


def restore_signals() -> None:
    """Restore Python's own handlers, for a command that handles both signals itself."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is _exit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> None:
    # No file is open yet, and cleanup handlers of half-imported modules could fail.
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def check_torch(version: str) -> None:
    """Raise ImportError if this version of torch is too old."""
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if numbers < OLDEST_TORCH:
        wanted = ".".join(map(str, OLDEST_TORCH))
        raise ImportError(
            f"construct needs torch {wanted} or newer, and this is {version} (pip install 'torch>={wanted}')"
        )


exit_on_signals()

import torch  # noqa: E402  after the handlers

check_torch(torch.__version__)
