"""Checks a conversion: every layer on samples, a certificate for each, and the runs of the whole
network.
"""

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from math import prod

import torch
from torch import nn

from construct.attention import MHSA
from construct.command.report import Conversion, LayerRow, NetworkRow, Pairs
from construct.command.runs import Runs, refusing_large_outputs, run_both
from construct.command.terminal import Phases
from construct.errors import printable, require
from construct.files.command_line.load_network import inputs_for
from verify.argument.verdicts import certify_layer, same_expression
from verify.samples.network import compare_numbers
from verify.samples.sampling import (
    LayerCheck,
    check_call,
    evaluating,
    generated_inputs,
    generated_shape,
)


def check_conversion(
    conversion: Conversion, options: Namespace, progress: Phases
) -> tuple[tuple[LayerRow, ...], NetworkRow | None]:
    """Check and certify every layer (on the network's activations if its input size is known), and
    compare the whole networks.

    No run changes the networks.
    """
    pairs = conversion.pairs
    inputs = inputs_for(conversion.model, options)
    if inputs is None:
        checks = _checked_alone(pairs, pairs, options, progress)
        rows = [_row(path, *pairs[path], checks[path], None) for path in pairs]
        return _certified(rows, options, progress), None
    networks = (conversion.model, conversion.converted)
    runs = run_both(*networks, pairs, *inputs, options, progress)
    uncalled = [path for path in pairs if path not in runs.checks]
    checks = runs.checks | _checked_alone(
        pairs, uncalled, options, progress, "; not exercised by the network"
    )
    rows = [_row(path, *pairs[path], checks[path], path not in uncalled) for path in pairs]
    layers = _certified(rows, options, progress)
    return layers, _network_row(runs, layers, options)


def _row(
    path: str, conv: nn.Module, layer: MHSA, check: LayerCheck, exercised: bool | None
) -> LayerRow:
    """A layer that is not certified yet."""
    return LayerRow(path, conv, layer, check, None, check.verdict, exercised)


def _checked_alone(
    pairs: Pairs,
    paths: Iterable[str],
    options: Namespace,
    progress: Phases,
    remark: str = "",
) -> dict[str, LayerCheck]:
    """Check layers on generated inputs, each alone; ``remark`` goes to the description of the
    inputs.
    """
    paths = list(paths)
    if paths:
        progress.begin("checking", len(paths))
    checks = dict[str, LayerCheck]()
    for path in paths:
        conv, layer = pairs[path]
        shape = generated_shape(conv, options.samples)
        sides = "x".join(map(str, shape[1:]))
        name = f"{printable(path) or 'the layer'}: "
        require(
            8 * prod(shape), torch.device("cpu"), f"a run on {shape[0]} inputs of {sides}", name
        )
        x = generated_inputs(conv, options.samples, options.seed)
        inputs = f"{options.samples} generated inputs of {sides} (seed {options.seed}){remark}"
        with evaluating(conv, layer), refusing_large_outputs({path: pairs[path]}):
            checks[path] = check_call(conv, layer, x, inputs)
        progress.advance(path)
    return checks


def _certified(rows: list[LayerRow], options: Namespace, progress: Phases) -> tuple[LayerRow, ...]:
    """The rows with their certificates, unless the options want none."""
    if options.no_certify:
        return tuple(map(_explaining_leaks, rows))
    # Where the user chose the sharpness, certificates of leaking heads claim a difference within a
    # bound.
    chosen = options.alpha is not None or options.tolerance is not None
    progress.begin("certifying", len(rows))
    certified = []
    for row in rows:
        certificate, verdict = certify_layer(
            row.conv,
            row.layer,
            row.check,
            options.input_bound,
            within=options.within,
            leaking=chosen,
        )
        progress.advance(row.path)
        certified.append(_explaining_leaks(replace(row, certificate=certificate, verdict=verdict)))
    return tuple(certified)


def _explaining_leaks(row: LayerRow) -> LayerRow:
    """A row whose verdict says that soft heads leak, where it is REFUTED and they do."""
    if row.verdict.name != "REFUTED" or row.alpha >= row.sharp_from:
        return row
    leak = f"at alpha = {row.alpha:.4g} the heads leak attention to other keys"
    sentence = f"{row.verdict.sentence}; {leak} (from {row.sharp_from:.4g} on they do not)"
    return replace(row, verdict=replace(row.verdict, sentence=sentence))


def _network_row(runs: Runs, rows: tuple[LayerRow, ...], options: Namespace) -> NetworkRow:
    certificates = {row.path: row.certificate for row in rows}
    checks = {row.path: row.check for row in rows}
    leaking = any(
        row.alpha < row.sharp_from or (row.certificate and row.certificate.within) for row in rows
    )
    numbers = compare_numbers(
        runs.original, runs.converted, runs.reference, runs.no_float64, leaking
    )
    same = bool(rows) and same_expression(runs.calls, certificates, checks)
    return NetworkRow(options.input_size, runs.inputs, runs.calls, numbers, same)
