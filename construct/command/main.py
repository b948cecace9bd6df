"""The main function of ``python -m construct.from_conv``: read, convert, check, certify, write, print."""

import contextlib
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import torch
from torch import nn

from construct.attention import MHSA
from construct.command.arguments import certificate_beside, parse
from construct.command.bare_kernels import geometry_flags
from construct.command.checking import check_conversion
from construct.command.html_report import check_page, write_page
from construct.command.load_network import converted_layer, network_of, surveyed
from construct.command.output import content_of, not_rechecked, write_outputs
from construct.command.report import Report, print_json
from construct.command.startup import INTERRUPTED, restore_signals
from construct.command.table import print_table
from construct.command.terminal import isolated, phases
from construct.errors import BadModelFile, describe, one_line, out_of_memory_error, printable
from construct.files.reading import read, regular_file
from construct.files.writing import check_destination, unlisted_names_in
from construct.modules.tied_weights import paths_of, share_tied, untied_parameters
from construct.modules.traversal import every_module
from construct.modules.wrappers import unwrapped
from construct.network import remarks_on, substitute
from verify.argument.documents import is_document

LESS_MEMORY = "try --execution chunked, a smaller --input-size, or fewer --samples"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command on these arguments, by default those of the process.

    Returns:
        The exit code: 0 all layers PROVED or CHECKED; 1 a layer or the network REFUTED, a layer UNDECIDED, a network that makes
        other calls or, without ``--partial``, an unconverted convolution; 2 bad input; 130 interrupted.
    """
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    stdout = sys.stdout
    name = ""
    try:
        restore_signals()
        try:
            options = parse(argv)
        except BrokenPipeError:  # --help | head
            _discard(stdout)
            return 0
        name = printable(options.model) + ": "
        with isolated():
            report = _run(options)
        _print(report, options.json, stdout)
        return report.exit_code
    except SystemExit as end:  # after --help
        return int(end.code or 0)
    except KeyboardInterrupt as error:
        message, code, cause = "interrupted", INTERRUPTED, error
    except BadModelFile as error:
        message, code, cause = f"error: {one_line(error.on_command_line, 2000)}", 2, error
    except MemoryError as error:
        message, code, cause = f"error: {name}{one_line(error) or 'out of memory'} ({LESS_MEMORY})", 2, error
    except BaseException as error:  # the user's code may raise anything, as a CancelledError
        memory = out_of_memory_error(error)
        what = f"{memory} ({LESS_MEMORY})" if memory else f"{describe(error)} (--debug shows where)"
        message, code, cause = f"error: {name}{what}", 2, error
    if debug:
        traceback.print_exception(cause, file=sys.stderr)
    if sys.stderr is not None:  # None if the caller closed it
        try:
            sys.stderr.write(message + "\n")
        except OSError:  # on a full disk the exit code has to say it
            _discard(sys.stderr)
    return code


def _run(options: Namespace) -> Report:
    """Read, survey, convert, check, certify, write."""
    output, document = _destinations(options)
    with phases() as progress:
        source = read(options.model, allow=options.allow, trust=options.trust)
        model, assumed = network_of(source, options)
        model, wrappers = unwrapped(model)
        if options.format == "onnx" and any(p.dtype == torch.bfloat16 for p in model.parameters()):
            what = f"{printable(options.model)}: is bfloat16, which ONNX's exporter cannot store"
            raise BadModelFile(what, "--format pt2 can")
        survey = surveyed(model, source.path)
        progress.begin("converting", len(survey.convertible))
        replacements: dict[nn.Module, MHSA] = {}
        for path, conv in survey.convertible.items():
            replacements[conv] = converted_layer(conv, options)
            progress.advance(path)
        share_tied(replacements)
        remarks = [*remarks_on(model, wrappers), *survey.remarks(), *untied_parameters(model, replacements)]
        unchecked = [] if options.no_certify else not_rechecked(survey, source, options.format)
        remarks += unchecked
        # A network may have state that a run changes, so the copy that is written is not the one that is run.
        unused, converted = substitute(model, replacements), substitute(model, replacements)
        pairs = {path: (conv, replacements[conv]) for path, conv in survey.convertible.items()}
        layers, network = check_conversion(model, converted, pairs, options, progress)
        equal = not any(row.verdict.name == "REFUTED" for row in layers) and (network is None or network.good)
        writable = bool(layers) and equal
        notes: tuple[str, ...] = (*source.notes, *assumed)
        if writable:
            progress.begin(f"writing {output.name}")
            # Bare kernels are written as modules: a state dict would lose their geometry again.
            whole = isinstance(source.content, nn.Module) or bool(geometry_flags(options))
            content, remarks_on_format = content_of(unused, whole, options)
            # A shared module is in the state dict once per name, and a recheck looks for it under each.
            certificates = [
                (name, row.certificate)
                for row in layers
                if row.certificate is not None
                for name in paths_of(model, row.path, pairs[row.path][0])
            ]
            notes += remarks_on_format
            notes += write_outputs(
                content, output, source, document, None if options.no_certify else certificates, network
            )
            if source.extra_names and isinstance(content, nn.Module) and (names := unlisted_names_in(output)):
                notes += (f"the output still names {printable(', '.join(names))}: --allow that to read it back",)
        left = bool(survey.refused) or (network is not None and network.calls.left > 0)
        good = equal and all(row.verdict.good for row in layers)
        if options.report is not None and not layers:
            notes += ("there is no layer to show, so no report was written",)
        report = Report(
            options=options,
            source=source,
            layers=layers,
            network=network,
            refused=survey.refused,
            remarks=tuple(remarks),
            earlier=sum(isinstance(module, MHSA) for _, module in every_module(model)),
            notes=notes,
            output=output if writable else None,
            document=document if writable and not options.no_certify else None,
            page=options.report if layers else None,
            exit_code=0 if good and (options.partial or not left) else 1,
        )
        if report.page is not None:
            progress.begin(f"writing {report.page.name}")
            with torch.no_grad():
                why = [f"{printable(path)}: {remark}" if path else remark for path, remark in unchecked]
                write_page(report, model, why)
    return report


def _destinations(options: Namespace) -> tuple[Path, Path]:
    """The paths of the output and its certificate, after checking that both can be written and replace no file of the user's."""
    regular_file(options.model)
    architecture = options.model_file.rpartition(":")[0] if options.model_file else None
    inputs = [Path(name) for name in (options.model, options.example_inputs, architecture) if name is not None]
    output = check_destination(options.output, inputs, options.force)
    document = certificate_beside(output, options.format)
    if not options.no_certify:
        if document == output:
            raise BadModelFile(f"{printable(output)}: is where the certificate goes (give another name with -o)")
        check_destination(document, inputs, options.force, is_document)
    # The page may not take the certificate's name even without a certificate: the next run may write one.
    check_page(options, inputs, (output, document))
    return output, document


def _print(report: Report, as_json: bool, stdout: TextIO | None) -> None:
    """Print the report; a closed pipe (``| head``) or stdout (``>&-``) is no error.

    Raises:
        BadModelFile: it cannot be written, for instance on a full disk.
    """
    if stdout is None:
        return
    try:
        (print_json if as_json else print_table)(report, stdout)
    except BrokenPipeError:
        _discard(stdout)
    except OSError as error:
        _discard(stdout)
        written = f"{printable(report.output)} is written" if report.output else "nothing else was written"
        raise BadModelFile(f"stdout: cannot be written: {one_line(error.strerror or error)} ({written})") from error


def _discard(stream: TextIO) -> None:
    """Redirect stdout or stderr to the null device, so that Python's flush at exit does not fail."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("w") as null:
        os.dup2(null.fileno(), stream.fileno())
