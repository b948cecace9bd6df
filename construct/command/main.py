"""The main function of ``python -m construct.from_conv``: options and destinations, then the
conversion, then what is printed.

It imports no torch at first, which takes seconds: what is wrong with the options or the files is
said before.
"""

import contextlib
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from construct.command.arguments import parse
from construct.command.startup import COMMAND, INTERRUPTED, require_torch, restore_signals
from construct.errors import BadModelFile, describe, one_line, out_of_memory_error, printable
from construct.files.destination import check_destination, not_written, regular_file
from verify.argument.documents import is_document, names_file
from verify.report.seal import is_page

if TYPE_CHECKING:
    from construct.command.report import Report

LESS_MEMORY = "try --execution auto, a smaller --input-size, or fewer --samples"


def main(argv: Sequence[str] | None = None, program: str = COMMAND) -> int:
    """Run the command on these arguments, by default those of the process.

    Args:
        argv: the arguments.
        program: what was typed before them, which the help, remedies and the page name.

    Returns:
        The exit code: 0 all layers PROVED or CHECKED; 1 a layer or the network REFUTED, a layer
        UNDECIDED, a network that makes other calls or, without ``--partial``, an unconverted
        convolution; 2 bad input; 130 interrupted.
    """
    if argv is None:
        argv = sys.argv[1:]
    try:
        return _run(argv, program, sys.stdout)
    except SystemExit as end:  # after --help
        return int(end.code or 0)
    except (KeyboardInterrupt, BadModelFile) as error:
        cause = error
    message = "interrupted"
    code = INTERRUPTED
    if isinstance(cause, BadModelFile):
        message = f"error: {one_line(cause.on_command_line.replace(COMMAND, program), 2000)}"
        code = 2
    if "--debug" in argv:
        traceback.print_exception(cause, file=sys.stderr)
    if sys.stderr is not None:  # None if the caller closed it
        try:
            sys.stderr.write(message + "\n")
        except OSError:  # on a full disk the exit code has to say it
            _discard(sys.stderr)
    return code


def _run(argv: Sequence[str], program: str, stdout: TextIO) -> int:
    """Convert and print; errors are BadModelFile, and KeyboardInterrupt."""
    with _explained(""):
        try:
            options = parse(argv, program)
        except BrokenPipeError:  # --help | head
            _discard(stdout)
            return 0
    with _explained(f"{printable(options.model)}: "):
        _check_files(options)
        require_torch()
        from construct.command.conversion import convert_file
        from construct.command.report import print_json
        from construct.command.table import print_table

        restore_signals()
        report = convert_file(options)
        print_report = print_table
        if options.json:
            print_report = print_json
        _print(report, print_report, stdout)
        return report.exit_code


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn every other error in the block into a BadModelFile whose message begins with the name of
    the model.
    """
    try:
        yield
    except (BadModelFile, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the user's code may raise anything, as a CancelledError
        memory = out_of_memory_error(error) or error
        if isinstance(memory, MemoryError):
            what = one_line(memory) or "out of memory"
            raise BadModelFile(f"{name}{what}", LESS_MEMORY) from error
        raise BadModelFile(f"{name}{describe(error)}", "--debug shows where") from error


def _check_files(options: Namespace) -> None:
    """Check that the inputs are files, and that nothing foreign is replaced.

    An output is ours if the certificate beside it names its digest; a certificate or a page, if it
    is as it was written.
    """
    architecture = options.model_file and options.model_file.rpartition(":")[0]
    inputs = [*filter(None, (options.model, options.example_inputs, architecture))]
    for path in inputs:
        regular_file(path)
    output = options.output
    document = options.document
    unnamed = "no certificate beside it names its digest"
    check_destination(output, inputs, options.force, partial(names_file, document), unnamed)
    if not options.no_certify:
        reason = "it is not a certificate, or was changed"
        check_destination(document, inputs, options.force, is_document, reason)
    if options.report is not None:
        # The page may not take the certificate's name even without a certificate: the next run may
        # write one.
        reason = "it is not the page of a report, or was changed"
        taken = (output, document)
        check_destination(options.report, inputs, options.force, is_page, reason, "--report", taken)


def _print(
    report: "Report", print_report: Callable[["Report", TextIO], None], stdout: TextIO | None
) -> None:
    """Print the report; a closed pipe (``| head``) or stdout (``>&-``) is no error.

    Raises:
        BadModelFile: it cannot be written, for instance on a full disk.
    """
    if stdout is None:
        return
    try:
        print_report(report, stdout)
    except BrokenPipeError:
        _discard(stdout)
    except OSError as error:
        _discard(stdout)
        written = "nothing else was written"
        if report.output is not None:
            written = f"{printable(report.output)} is written"
        raise not_written("stdout", error, written) from error


def _discard(stream: TextIO) -> None:
    """Redirect stdout or stderr to the null device, so that Python's flush at exit does not fail."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("w") as null:
        os.dup2(null.fileno(), stream.fileno())
