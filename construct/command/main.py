"""The command from its arguments to its exit code: read, survey, convert, check, certify, write, print."""

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
from construct.builder import conv_to_mhsa
from construct.command.architecture import NEEDS_ARCHITECTURE, module_from_file, named_module, with_state
from construct.command.arguments import certificate_beside, parse
from construct.command.bare_kernels import from_kernels, given
from construct.command.checking import judged
from construct.command.html_report import check_page, write_page
from construct.command.output import content_of, not_rechecked, put
from construct.command.signals import INTERRUPTED, as_usual
from construct.command.table import Report, print_json, print_table
from construct.command.terminal import phases, undisturbed
from construct.encoding.sharpness import ALPHA, alpha_for
from construct.errors import BadModelFile, described, one_line, refused_by_torch, shown
from construct.files.reading import ModelFile, read, regular_file
from construct.files.writing import beyond_ours, check_destination
from construct.modules.convolutions import geometry_of
from construct.modules.tied_weights import names_of, untied
from construct.network import Survey, every_module, remarks_on, share_tied, substitute, survey, unwrapped
from verify.argument.documents import is_document

MOST_HEADS = 10_000
"""Of one layer: the certificate looks at each head in exact numbers, which takes about a millisecond or more."""

LESS_MEMORY = "try --execution chunked, or a smaller --input-size"


def main(argv: Sequence[str] | None = None) -> int:
    """Convert one file, as the command line says.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit code: 0 all layers PROVED or CHECKED; 1 a layer or the network REFUTED, a layer UNDECIDED, a network that makes
        other calls or, without ``--partial``, a convolution that is left; 2 bad input; 130 interrupted.
    """
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    stdout = sys.stdout
    name = ""
    try:
        as_usual()  # only now: importing takes its time
        try:
            options = parse(argv)
        except BrokenPipeError:  # the help is longer than a pipe's buffer, and its reader has gone
            _nobody_reads(stdout)
            return 0
        name = shown(str(options.model)) + ": "
        with undisturbed():
            report = _run(options)
        _print(report, options.json, stdout)
        return report.exit_code
    except SystemExit as end:  # argparse has shown the help
        return int(end.code or 0)
    except KeyboardInterrupt as error:
        message, code, cause = "interrupted", INTERRUPTED, error
    except BadModelFile as error:
        message, code, cause = f"error: {one_line(error.on_command_line, 2000)}", 2, error
    except MemoryError as error:
        message, code, cause = f"error: {name}{one_line(error) or 'out of memory'} ({LESS_MEMORY})", 2, error
    except Exception as error:
        memory = refused_by_torch(error)
        told = f"{memory} ({LESS_MEMORY})" if memory else f"{described(error)} (--debug shows where)"
        message, code, cause = f"error: {name}{told}", 2, error
    if debug:
        traceback.print_exception(cause, file=sys.stderr)
    if sys.stderr is not None:  # closed by the caller
        sys.stderr.write(message + "\n")
    return code


def _run(options: Namespace) -> Report:
    """Read, survey, convert, check, certify, write."""
    output, document = _destinations(options)
    with phases() as progress:
        source = read(options.model, allow=options.allow, trust=options.trust)
        model, assumed = _network(source, options)
        model, wrappers = unwrapped(model)
        if options.format == "onnx" and any(p.dtype == torch.bfloat16 for p in model.parameters()):
            raise BadModelFile(
                f"{shown(str(options.model))}: is bfloat16, which ONNX's exporter cannot store (--format pt2 can)"
            )
        survey = _surveyed(model, source)
        progress.begin("converting", len(survey.convertible))
        replacements: dict[nn.Module, MHSA] = {}
        for path, conv in survey.convertible.items():
            replacements[conv] = _converted(conv, options)
            progress.advance(path)
        share_tied(replacements)
        remarks = [*remarks_on(model, wrappers), *survey.remarks(), *untied(model, replacements)]
        hindered = [] if options.no_certify else not_rechecked(survey, source, options.format)
        remarks += hindered
        # What is written has not been run: a network may count its calls, or keep what it saw.
        kept, converted = substitute(model, replacements), substitute(model, replacements)
        pairs = {path: (conv, replacements[conv]) for path, conv in survey.convertible.items()}
        layers, network = judged(model, converted, pairs, options, progress)
        equal = not any(row.verdict.name == "REFUTED" for row in layers) and (network is None or network.good)
        writable = bool(layers) and equal
        notes: tuple[str, ...] = (*source.notes, *assumed)
        if writable:
            progress.begin(f"writing {output.name}")
            # Kernels alone come out as modules: a state dict would lose the geometry again.
            whole = isinstance(source.content, nn.Module) or bool(given(options))
            content, remarks_on_format = content_of(kept, whole, options)
            # A module under two names stands twice in a state dict, and a recheck looks for it under both.
            certificates = [
                (name, row.certificate)
                for row in layers
                if row.certificate is not None
                for name in names_of(model, row.path, pairs[row.path][0])
            ]
            speaking = None if options.no_certify else certificates
            notes += remarks_on_format
            notes += put(content, output, source, document, speaking, network)
            if source.beyond and isinstance(content, nn.Module) and (beyond := beyond_ours(output)):
                notes += (f"the output still names {shown(', '.join(beyond))}: --allow that to read it back",)
        left = bool(survey.refused) or (network is not None and network.calls.left > 0)
        good = equal and all(row.verdict.good for row in layers)
        if options.report is not None and not layers:
            notes += ("there is no layer to show, so no report was written",)
        report = Report(
            source=source.path,
            sha256=source.sha256,
            layers=layers,
            network=network,
            refused=survey.refused,
            remarks=tuple(remarks),
            earlier=sum(isinstance(module, MHSA) for _, module in every_module(model)),
            samples=options.samples,
            seed=options.seed,
            notes=notes,
            output=output if writable else None,
            document=document if writable and not options.no_certify else None,
            exit_code=0 if good and (options.partial or not left) else 1,
            page=options.report if layers else None,
            explain=options.explain,
        )
        if report.page is not None:
            progress.begin(f"writing {report.page.name}")
            with torch.no_grad():
                why = [f"{shown(path)}: {remark}" if path else remark for path, remark in hindered]
                write_page(report, model, pairs, options, why)
    return report


def _destinations(options: Namespace) -> tuple[Path, Path]:
    """Where the network and its certificate go, once it is sure that both can be written and replace nothing of the user's."""
    regular_file(options.model)
    output = check_destination(options.output, options.model, options.force)
    document = certificate_beside(output, options.format)
    if not options.no_certify:
        if document == output:
            raise BadModelFile(f"{shown(str(output))}: is where the certificate goes (give another name with -o)")
        check_destination(document, options.model, options.force, is_document)
    # A page may not take the certificate's name either where none is written: the next run's would be in its way.
    check_page(options, (output, document))
    return output, document


def _network(source: ModelFile, options: Namespace) -> tuple[nn.Module, tuple[str, ...]]:
    """The network of a file, with the user's architecture or geometry where the file has none; and what was assumed."""
    content, spec, name = source.content, options.arch or options.model_file, shown(str(source.path))
    flags = given(options)
    if isinstance(content, nn.Module) or spec:
        if flags:
            raise BadModelFile(f"{name}: {', '.join(flags)} is only for a state dict without a network (leave it out)")
        if not isinstance(content, nn.Module):
            model = named_module(spec) if options.arch else module_from_file(spec)
            return with_state(model, source, spec)
        if spec:
            raise BadModelFile(f"{name}: holds a whole module, which needs no architecture (leave out {shown(spec)})")
        return content, ()
    if flags:
        return from_kernels(content, options, name)
    earlier = sum(key.rpartition(".")[2] == "w_key_pos" for key in content)
    note = f" (it holds {_counted(earlier)} of an earlier conversion)" if earlier else ""
    raise BadModelFile(f"{name}: {NEEDS_ARCHITECTURE}{note}")


def _surveyed(model: nn.Module, source: ModelFile) -> Survey:
    """What there is to convert; refuse a network with nothing to do."""
    found, name = survey(model), shown(str(source.path))
    earlier = sum(isinstance(module, MHSA) for _, module in every_module(model))
    if not found.convertible and not found.refused and not earlier:
        raise BadModelFile(f"{name}: no convolution found (give a network that has one)")
    for path, conv in found.convertible.items():
        heads = geometry_of(conv).taps
        if heads > MOST_HEADS:
            raise BadModelFile(
                f"{name}: {shown(path) or 'the layer'} needs {heads} heads, one for each tap of its kernel, and this command takes "
                f"at most {MOST_HEADS} (convert it in Python with construct.conv_to_mhsa)"
            )
    if found.refused and not found.convertible:
        first, *others = found.refused
        more = f"; and {len(others)} more" if others else ""
        raise BadModelFile(f"{name}: no convolution could be converted: {one_line(first)}{more}")
    return found


def _converted(conv: nn.Module, options: Namespace) -> MHSA:
    alpha = options.alpha or ALPHA
    if options.tolerance is not None:
        alpha = alpha_for(tolerance=options.tolerance, dims=geometry_of(conv).dims)
    layer = conv_to_mhsa(conv, alpha=alpha, execution=options.execution, encoding=options.encoding)
    if not bool(layer.v.isfinite().all()):
        raise BadModelFile(f"--alpha {alpha:.4g} is beyond {layer.v.dtype}, in which positions are kept (give less)")
    return layer


def _counted(layers: int) -> str:
    return f"{layers} attention layer{'s' if layers != 1 else ''}"


def _print(report: Report, as_json: bool, stdout: TextIO | None) -> None:
    """Print; a reader who has seen enough (``| head``), or none at all (``>&-``), is no error.

    Raises:
        BadModelFile: it cannot be printed, as on a disk that is full.
    """
    if stdout is None:
        return
    try:
        (print_json if as_json else print_table)(report, stdout)
    except BrokenPipeError:
        _nobody_reads(stdout)
    except OSError as error:
        _nobody_reads(stdout)
        written = f"{shown(str(report.output))} is written" if report.output else "nothing else was written"
        raise BadModelFile(f"stdout: cannot be written: {one_line(error.strerror or error)} ({written})") from error


def _nobody_reads(stdout: TextIO) -> None:
    """Point the pipe at nothing, so that Python does not complain when it flushes at the end."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), stdout.fileno())
