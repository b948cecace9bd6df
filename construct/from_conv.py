"""``python -m construct.from_conv``: a saved network in, attention weights out, and the equality shown layer by layer."""

import contextlib
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TextIO

import torch
from torch import Tensor, nn

from construct.architecture import module_from_file, named_module, with_state
from construct.attention import MHSA
from construct.builder import conv_to_mhsa
from construct.errors import BadModelFile
from construct.files import NEEDS_ARCHITECTURE, ModelFile, read, regular_file
from construct.network import Survey, every_module, share_tied, substitute, survey
from construct.options import parse
from construct.plain_text import described, one_line, shown
from construct.sharpness import ALPHA, alpha_for
from construct.support import geometry_of
from construct.table import LayerRow, NetworkRow, Report, network_dict, print_json, print_table
from construct.terminal import Advance, progress, undisturbed
from construct.trial import end_to_end, network_row, outputs_and_calls, seeded_inputs
from construct.writing import check_destination, write


def main(argv: Sequence[str] | None = None) -> int:
    """Convert one file, as the command line says.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit code: 0 all layers PROVED or CHECKED; 1 something REFUTED, UNDECIDED or, with ``--strict``, left unconverted;
        2 bad input; 130 interrupted.
    """
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    stdout = sys.stdout
    name = ""
    try:
        options = parse(argv)
        name = shown(str(options.model)) + ": "
        # The only place where the builder knows of the checker.
        from verify import calls, documents, layers, propagation, sampling

        with undisturbed():
            report = _run(options, Checkers(sampling, calls, layers, documents, propagation))
        _print(report, options.json, stdout)
        return report.exit_code
    except SystemExit as end:  # argparse has shown the help
        return int(end.code or 0)
    except KeyboardInterrupt as error:
        message, code, cause = "interrupted", 130, error
    except BadModelFile as error:
        message, code, cause = f"error: {one_line(error, 2000)}", 2, error
    except MemoryError as error:
        hint = "try --execution chunked, or a smaller --input-size"
        message, code, cause = f"error: {name}{one_line(error) or 'out of memory'} ({hint})", 2, error
    except Exception as error:
        message, code, cause = f"error: {name}{described(error)} (--debug shows where)", 2, error
    if debug:
        traceback.print_exception(cause, file=sys.stderr)
    sys.stderr.write(message + "\n")
    return code


class Checkers(NamedTuple):
    """The modules of ``verify`` that the work needs."""

    sampling: ModuleType
    calls: ModuleType
    layers: ModuleType
    documents: ModuleType
    propagation: ModuleType


def _run(options: Namespace, checkers: Checkers) -> Report:
    """Read, survey, convert, check, certify, write."""
    regular_file(options.model)
    output = check_destination(options.output, options.model, options.force)
    document = None
    if not options.no_certify:
        document = output.with_suffix(".json")
        check_destination(document, options.model, options.force, checkers.documents.is_document)
    source = read(options.model)
    model = _network(source, options)
    found = _surveyed(model, source, options.strict)
    with progress(len(found.convertible) * (1 + options.samples if options.input_size else 2)) as advance:
        replacements: dict[nn.Module, MHSA] = {}
        for path, conv in found.convertible.items():
            replacements[conv] = _converted(conv, options)
            advance(path)
        share_tied(replacements)
        converted = substitute(model, replacements)
        pairs = {path: (conv, replacements[conv]) for path, conv in found.convertible.items()}
        layers, network = _judged(model, converted, pairs, options, checkers, advance)
    verdicts = [row.verdict for row in layers]
    writable = bool(layers) and not any(verdict.name == "REFUTED" for verdict in verdicts)
    if writable:
        _write(converted if isinstance(source.content, nn.Module) else converted.state_dict(), output)
        if document is not None:
            certificates = [(row.path, row.certificate) for row in layers if row.certificate is not None]
            _write_document(checkers.documents, document, certificates, source, output, network)
    left_out = bool(found.refused) or (network is not None and network.calls_after > 0)
    refuted = network is not None and any(bound.verdict.name == "REFUTED" for bound in network.bounds)
    good = not refuted and all(verdict.good for verdict in verdicts) and not (options.strict and left_out)
    return Report(
        source=source.path,
        sha256=source.sha256,
        layers=layers,
        network=network,
        refused=found.refused,
        earlier=sum(isinstance(module, MHSA) for _, module in every_module(model)),
        samples=options.samples,
        seed=options.seed,
        output=output if writable else None,
        document=document if writable else None,
        exit_code=0 if good else 1,
    )


def _write(content: nn.Module | dict[str, Tensor], output: Path) -> None:
    try:
        write(content, output)
    except OSError as error:
        what = one_line(error.strerror or error)
        raise BadModelFile(f"{shown(str(output))}: cannot be written: {what} (nothing was changed)") from error


def _write_document(
    documents: ModuleType,
    document: Path,
    certificates: list[Any],
    source: ModelFile,
    output: Path,
    network: NetworkRow | None,
) -> None:
    figures = None if network is None else network_dict(network)
    try:
        documents.write_document(document, certificates, conv_file=source.path, mhsa_file=output, network=figures)
    except OSError as error:
        what = one_line(error.strerror or error)
        raise BadModelFile(f"{shown(str(document))}: cannot be written: {what}") from error


def _network(source: ModelFile, options: Namespace) -> nn.Module:
    """The network of a file, with the user's architecture where the file has none."""
    content, spec, name = source.content, options.arch or options.model_file, shown(str(source.path))
    if isinstance(content, nn.Module):
        if spec:
            raise BadModelFile(f"{name}: holds a whole module, which needs no architecture (leave out {shown(spec)})")
        return content
    if spec is None:
        earlier = sum(key.rpartition(".")[2] == "w_key_pos" for key in content)
        note = f" (it holds {_counted(earlier)} of an earlier conversion)" if earlier else ""
        raise BadModelFile(f"{name}: {NEEDS_ARCHITECTURE}{note}")
    model = named_module(spec) if options.arch else module_from_file(spec)
    return with_state(model, content, source.path, spec)


def _surveyed(model: nn.Module, source: ModelFile, strict: bool) -> Survey:
    """What there is to convert; refuse a network with nothing to do."""
    found, name = survey(model), shown(str(source.path))
    earlier = sum(isinstance(module, MHSA) for _, module in every_module(model))
    if not found.convertible and not found.refused and not earlier:
        raise BadModelFile(f"{name}: no convolution found")
    if found.refused and not found.convertible and not strict:
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


def _judged(
    model: nn.Module,
    converted: nn.Module,
    pairs: dict[str, tuple[nn.Module, MHSA]],
    options: Namespace,
    checkers: Checkers,
    advance: Advance,
) -> tuple[tuple[LayerRow, ...], NetworkRow | None]:
    """Check every layer, on the network's own activations if the size of its input is known, and the network as a whole."""
    sampling, calls = checkers.sampling, checkers.calls
    checks: dict[str, Any] = {}
    network = None
    if options.input_size:
        inputs = seeded_inputs(model, options)
        with sampling.evaluating(model, converted), torch.no_grad():
            before = outputs_and_calls(model, inputs, calls, options)
            size = "x".join(map(str, options.input_size))
            what = f"the network's activations on {options.samples} random inputs of {size} (seed {options.seed})"
            checks = sampling.check_on_activations(model, pairs, inputs, what, advance)
            after = outputs_and_calls(converted, inputs, calls, options)
    rows = []
    for path, (conv, layer) in pairs.items():
        if path not in checks:
            x = sampling.generated_inputs(conv, options.samples, options.seed)
            what = f"{options.samples} generated inputs of {'x'.join(map(str, x.shape[1:]))} (seed {options.seed})"
            what += "; not exercised by the network" if options.input_size else ""
            with sampling.evaluating(conv, layer):
                check = sampling.check_call(conv, layer, x, what)
            advance(path)
        else:
            check = checks[path]
        certificate, verdict = None, check.verdict
        if not options.no_certify:
            certificate, verdict = checkers.layers.certify_layer(
                conv, layer, check, options.input_bound, leaking=options.tolerance is not None
            )
        exercised = path in checks if options.input_size else None
        rows.append(_layer_row(path, layer, check, certificate, verdict, exercised))
    if options.input_size:
        bounds: tuple[Any, ...] = ()
        if not options.no_certify and options.tolerance is None:
            certificates = {row.path: row.certificate for row in rows if row.certificate is not None}
            with sampling.evaluating(model, converted):
                bounds = end_to_end(checkers.propagation, (model, converted), inputs, pairs, certificates)
        network = network_row(before, after, options.input_size, bounds)
    return tuple(rows), network


def _layer_row(path: str, layer: MHSA, check: Any, certificate: Any, verdict: Any, exercised: bool | None) -> LayerRow:
    alpha, sentence = float(layer.centres()[0].min()), verdict.sentence
    sharp = alpha_for(torch.promote_types(layer.w_val.dtype, torch.float32))
    if verdict.name == "REFUTED" and not alpha >= sharp:
        sentence += f"; at alpha = {alpha:.4g} the heads leak attention to other keys (from {sharp:.4g} on they do not)"
    return LayerRow(
        path=path,
        geometry=layer.geometry,
        heads=layer.heads,
        head_dim=layer.w_val.shape[3],
        alpha=alpha,
        check=check,
        certificate=certificate,
        verdict=verdict,
        sentence=sentence,
        exercised=exercised,
    )


def _counted(layers: int) -> str:
    return f"{layers} attention layer{'s' if layers != 1 else ''}"


def _print(report: Report, as_json: bool, stdout: TextIO) -> None:
    """Print; a reader who has seen enough (``| head``) is no error."""
    try:
        (print_json if as_json else print_table)(report, stdout)
    except BrokenPipeError:
        # Point the pipe at nothing, so that Python does not complain when it flushes at the end.
        with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
