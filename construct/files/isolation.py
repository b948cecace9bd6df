"""Isolates the process from a user's network, and turns what its code raises into one line."""

import contextlib
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from unittest.mock import patch

import torch

from construct.errors import BadModelFile, describe, out_of_memory_error


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Isolate the process from a user's network within the block.

    Its prints go to stderr, ``sys.argv`` has no arguments of ours, torch's warnings are silenced,
    torch's random state is restored, and SIGTERM raises KeyboardInterrupt, so that temporary files
    are removed.  NNPACK's Winograd kernels are off, because certificates do not cover them.
    """
    with (
        _sigterm_as_sigint(),
        patch.object(sys, "argv", sys.argv[:1]),
        contextlib.redirect_stdout(sys.stderr),
        torch.random.fork_rng(devices=[]),
        torch.backends.nnpack.flags(enabled=False),
        warnings.catch_warnings(action="ignore", category=UserWarning),
    ):
        yield


@contextlib.contextmanager
def _sigterm_as_sigint() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signal handlers belong to the main thread
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextlib.contextmanager
def refusing(what: str, remedy: str = "") -> Iterator[None]:
    """Raise every error in the block as a :class:`BadModelFile` whose message ``what`` begins: code
    of the user's, and what takes a file apart, may raise anything.  Want of memory says nothing of
    the file.
    """
    try:
        yield
    except (BadModelFile, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        memory = out_of_memory_error(error)
        raise memory or BadModelFile(f"{what}{describe(error)}", remedy) from error
