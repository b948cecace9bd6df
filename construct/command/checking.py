"""Checks a conversion: every layer on samples, a certificate for each, and the runs of the whole network."""

from argparse import Namespace
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import nn

from construct.attention import MHSA
from construct.command.report import LayerRow, NetworkRow
from construct.command.runs import inputs_for, refusing_large_outputs, run_both
from construct.command.terminal import Phases
from construct.errors import printable, require
from verify.argument.verdicts import certify_layer, same_expression
from verify.samples.network import compare_numbers
from verify.samples.sampling import LayerCheck, check_call, evaluating, generated_inputs, generated_shape


def check_conversion(
    model: nn.Module,
    converted: nn.Module,
    pairs: dict[str, tuple[nn.Module, MHSA]],
    options: Namespace,
    progress: Phases,
) -> tuple[tuple[LayerRow, ...], NetworkRow | None]:
    """Check and certify every layer (on the network's activations if its input size is known), and compare the whole networks.

    No run changes ``model`` or ``converted``.
    """
    runs, checks = None, dict[str, LayerCheck]()
    inputs = inputs_for(model, options)
    if inputs is not None:
        runs = run_both(model, converted, pairs, *inputs, options, progress)
        checks |= runs.checks
    alone = [path for path in pairs if path not in checks]
    if alone:
        progress.begin("checking", len(alone))
    for path in alone:
        checks[path] = _checked_alone(path, pairs[path], options, runs is not None)
        progress.advance(path)
    # Where the user chose the sharpness, certificates of leaking heads claim a difference within a bound.
    chosen = options.alpha is not None or options.tolerance is not None
    if not options.no_certify:
        progress.begin("certifying", len(pairs))
    rows = []
    for path, (conv, layer) in pairs.items():
        check = checks[path]
        certificate, verdict = None, check.verdict
        if not options.no_certify:
            certificate, verdict = certify_layer(
                conv, layer, check, options.input_bound, within=options.within, leaking=chosen
            )
            progress.advance(path)
        exercised = None if runs is None else path not in alone
        row = LayerRow(path, conv, layer, check, certificate, verdict, exercised)
        if verdict.name == "REFUTED" and not row.alpha >= row.sharp_from:
            leak = f"; at alpha = {row.alpha:.4g} the heads leak attention to other keys (from {row.sharp_from:.4g} on they do not)"
            row = replace(row, verdict=replace(verdict, sentence=verdict.sentence + leak))
        rows.append(row)
    network = None
    if runs is not None:
        certificates = {row.path: row.certificate for row in rows}
        leaking = any(row.alpha < row.sharp_from or (row.certificate and row.certificate.within) for row in rows)
        numbers = compare_numbers(runs.original, runs.converted, runs.reference, runs.no_float64, leaking)
        same = bool(pairs) and same_expression(runs.calls, certificates, checks)
        network = NetworkRow(options.input_size, runs.inputs, runs.calls, numbers, same)
    return tuple(rows), network


def _checked_alone(path: str, pair: tuple[nn.Module, MHSA], options: Namespace, uncalled: bool) -> Any:
    """Check a layer on generated inputs; ``uncalled`` means that the network does not call it."""
    conv, layer = pair
    shape = generated_shape(conv, options.samples)
    sides = "x".join(map(str, shape[1:]))
    what, who = f"a run on {shape[0]} inputs of {sides}", f"{printable(path) or 'the layer'}: "
    require(8 * prod(shape), torch.device("cpu"), what, who)
    x = generated_inputs(conv, options.samples, options.seed)
    what = f"{options.samples} generated inputs of {sides} (seed {options.seed})"
    what += "; not exercised by the network" if uncalled else ""
    with evaluating(conv, layer), refusing_large_outputs({path: pair}):
        return check_call(conv, layer, x, what)
