"""Checks a conversion: every layer on samples, a certificate for each, and the runs of the whole
network.
"""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from math import prod

import torch

from construct.command.report import Conversion, LayerRow, NetworkRow, Pairs, percent
from construct.command.runs import refusing_large_outputs, run_both
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
from verify.verdict import Verdict, from_above

MOST_SHARE = 0.01
"""The largest share of a layer's outputs that a difference may have without ``--within``."""


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
        checks = _checked_alone(pairs, [*pairs], "", options, progress)
        return _certified(pairs, checks, {}, options, progress), None
    runs = run_both(conversion.model, conversion.converted, pairs, *inputs, options, progress)
    exercised = {path: path in runs.checks for path in pairs}
    uncalled = [path for path in pairs if not exercised[path]]
    remark = "; not exercised by the network"
    checks = runs.checks | _checked_alone(pairs, uncalled, remark, options, progress)
    layers = _certified(pairs, checks, exercised, options, progress)
    leaking = any(
        row.alpha < row.sharp_from or (row.certificate and row.certificate.within) for row in layers
    )
    numbers = compare_numbers(
        runs.original, runs.converted, runs.reference, runs.no_float64, leaking
    )
    certificates = {row.path: row.certificate for row in layers}
    same = bool(layers) and same_expression(runs.calls, certificates, checks)
    return layers, NetworkRow(options.input_size, inputs[1], runs.calls, numbers, same)


def _checked_alone(
    pairs: Pairs,
    paths: list[str],
    remark: str,
    options: Namespace,
    progress: Phases,
) -> dict[str, LayerCheck]:
    """Check layers on generated inputs, each alone; ``remark`` goes to the description of the
    inputs.
    """
    if paths:
        progress.begin("checking", len(paths))
    checks = dict[str, LayerCheck]()
    for path in paths:
        conv, layer = pairs[path]
        # In training, to read a parametrized weight may change it.
        with evaluating(conv, layer), refusing_large_outputs({path: conv}, pairs):
            shape = generated_shape(conv, options.samples)
            sides = "x".join(map(str, shape[1:]))
            name = f"{printable(path) or 'the layer'}: "
            require(
                8 * prod(shape), torch.device("cpu"), f"a run on {shape[0]} inputs of {sides}", name
            )
            x = generated_inputs(conv, options.samples, options.seed)
            inputs = f"{options.samples} generated inputs of {sides} (seed {options.seed}){remark}"
            checks[path] = check_call(conv, layer, x, inputs)
        progress.advance(path)
    return checks


def _certified(
    pairs: Pairs,
    checks: Mapping[str, LayerCheck],
    exercised: Mapping[str, bool],
    options: Namespace,
    progress: Phases,
) -> tuple[LayerRow, ...]:
    """The layers with their verdicts, and with certificates unless the options want none."""
    # Where the user chose the sharpness, certificates of leaking heads claim a difference within a
    # bound.
    chosen = options.alpha is not None or options.tolerance is not None
    if not options.no_certify:
        progress.begin("certifying", len(pairs))
    rows = []
    for path, (conv, layer) in pairs.items():
        check = checks[path]
        certificate = None
        verdict = check.verdict
        if not options.no_certify:
            certificate, verdict = certify_layer(
                conv, layer, check, options.input_bound, within=options.within, leaking=chosen
            )
            progress.advance(path)
        rows.append(
            LayerRow(
                path,
                conv,
                layer,
                check,
                certificate,
                verdict,
                exercised.get(path),
            )
        )
    most = max((row.largest_bound for row in rows), default=0.0)
    return tuple(_explained(row, most, options) for row in rows)


def _explained(row: LayerRow, most: float, options: Namespace) -> LayerRow:
    """A row that says where soft heads leak, if it is REFUTED; UNDECIDED if its bound, which nobody
    has asked for, is so large that it says little.  ``most`` is the largest bound of all rows.
    """
    verdict = row.verdict
    if verdict.name == "REFUTED" and row.alpha < row.sharp_from:
        leak = f"at alpha = {row.alpha:.4g} the heads leak attention to other keys"
        sentence = f"{verdict.sentence}; {leak} (from {row.sharp_from:.4g} on they do not)"
        return replace(row, verdict=replace(verdict, sentence=sentence))
    certificate = row.certificate
    share = row.share or 0.0
    meant = options.within is not None or share <= MOST_SHARE
    if certificate is None or verdict.name != "PROVED" or meant:
        return row
    what = f"the bound is {percent(share)} of its largest output, {row.check.largest_output:.2g}"
    accept = f"--within {from_above(most, digits=2)} accepts it; sharper heads lower it"
    verdict = Verdict("UNDECIDED", f"{what}, more than {percent(MOST_SHARE)} ({accept})")
    return replace(row, verdict=verdict, certificate=replace(certificate, verdict=verdict))
