"""A conversion judged: every layer on samples and by its certificate, the network as a whole, and what a row says of it."""

from argparse import Namespace
from math import prod
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from construct.attention import MHSA
from construct.folding import folded, plain
from construct.network import substitute
from construct.plain_text import shown
from construct.room import require
from construct.sharpness import alpha_for
from construct.table import LayerRow, NetworkRow
from construct.terminal import Advance
from construct.trial import counting, end_to_end, inputs_for, network_row, outputs_and_calls, same_way, within_room
from construct.walk import every_module


class Checkers(NamedTuple):
    """The modules of ``verify`` that the work needs."""

    sampling: ModuleType
    calls: ModuleType
    layers: ModuleType
    documents: ModuleType
    propagation: ModuleType
    pages: ModuleType


class Certificates:
    """The certificates of a network's layers, each made once: in the run from end to end when that meets it, or afterwards.

    Args:
        pairs: path → (convolution, attention layer).
        checks: path → what the samples showed of it.
        options: of the command.
        checkers: what certifies.
    """

    def __init__(
        self,
        pairs: dict[str, tuple[nn.Module, MHSA]],
        checks: dict[str, Any],
        options: Namespace,
        checkers: Checkers,
    ):
        self.pairs, self.checks, self.options, self.checkers = pairs, checks, options, checkers
        self.made: dict[str, tuple[Any, Any]] = {}

    def met(self, path: str, pair: Any) -> Any:
        """The certificate of a layer as the run meets it; None where that asks for another output size than the layer's own."""
        if path not in self.checks or pair.conv.output_padding != self.pairs[path][0].output_padding:
            return None
        return self._make(path, pair.conv, pair.layer, pair.attention)[0]

    def of(self, path: str) -> tuple[Any, Any]:
        """A layer's certificate (None if there is none to be had), and the verdict on it."""
        conv, layer = self.pairs[path]
        return self.made[path] if path in self.made else self._make(path, plain(conv), layer)

    def _make(self, path: str, conv: nn.Module, layer: nn.Module, fields: Any = None) -> tuple[Any, Any]:
        bound, leaking = self.options.input_bound, self.options.tolerance is not None
        self.made[path] = self.checkers.layers.certify_layer(
            conv, layer, self.checks[path], bound, leaking=leaking, attention=fields
        )
        return self.made[path]


def judged(
    model: nn.Module,
    converted: nn.Module,
    pairs: dict[str, tuple[nn.Module, MHSA]],
    options: Namespace,
    checkers: Checkers,
    advance: Advance,
) -> tuple[tuple[LayerRow, ...], NetworkRow | None]:
    """Check every layer, on the network's own activations if the size of its input is known, and the network as a whole."""
    sampling = checkers.sampling
    checks: dict[str, Any] = {}
    certificates = Certificates(pairs, checks, options, checkers)
    network = None
    given = inputs_for(model, options)
    if given is not None:
        inputs, told = given
        with sampling.evaluating(model, converted), within_room(pairs), torch.no_grad():
            before = outputs_and_calls(model, inputs, sampling.called, checkers.calls, options)
            what = f"the network's activations on {told}" + (f" (seed {options.seed})" if options.input_size else "")
            checks |= sampling.check_on_activations(model, pairs, inputs, what, advance)
            with counting(pairs) as counts:
                after = outputs_and_calls(converted, inputs, sampling.called, checkers.calls, options, converted=True)
            called = {path: (checks[path].calls if path in checks else 0, counts[path]) for path in pairs}
            same_way(before[0], after[0], called, options)
        bounds: tuple[Any, ...] = ()
        if not options.no_certify:
            subject, known = _folded_away(model, pairs)
            with sampling.evaluating(subject, converted):
                bounds = end_to_end(checkers.propagation, (subject, converted), inputs, known, certificates.met)
        network = network_row(before, after, options.input_size, told, bounds)
    exercised = frozenset(checks)
    rows = []
    for path, pair in pairs.items():
        if path not in checks:
            checks[path] = _checked_alone(path, pair, options, sampling, given is not None)
            advance(path)
        certificate, verdict = (None, checks[path].verdict) if options.no_certify else certificates.of(path)
        ran = path in exercised if given is not None else None
        rows.append(_layer_row(path, pair, checks[path], certificate, verdict, ran))
    return tuple(rows), network


def _checked_alone(
    path: str, pair: tuple[nn.Module, MHSA], options: Namespace, sampling: ModuleType, beside: bool
) -> Any:
    """What generated inputs show of a layer; ``beside`` a network that does not exercise it."""
    conv, layer = pair
    shape = sampling.generated_shape(conv, options.samples)
    sides = "x".join(map(str, shape[1:]))
    what, who = f"a run on {shape[0]} inputs of {sides}", f"{shown(path) or 'the layer'}: "
    require(8 * prod(shape), torch.device("cpu"), what, who)
    x = sampling.generated_inputs(conv, options.samples, options.seed)
    what = f"{options.samples} generated inputs of {sides} (seed {options.seed})"
    what += "; not exercised by the network" if beside else ""
    with sampling.evaluating(conv, layer), within_room({path: pair}):
        return sampling.check_call(conv, layer, x, what)


def _folded_away(
    model: nn.Module, pairs: dict[str, tuple[nn.Module, MHSA]]
) -> tuple[nn.Module, dict[str, tuple[nn.Module, MHSA]]]:
    """The network with every parametrized convolution as a plain one: what bounds from end to end can speak of."""
    plains = {conv: plain(conv) for conv, _ in pairs.values() if folded(conv)}
    if not plains:
        return model, pairs
    known = {path: (plains.get(conv), layer) for path, (conv, layer) in pairs.items()}
    alike = substitute(model, plains)
    others = {path: module for path, module in every_module(alike)}
    return alike, {path: (conv or others[path], layer) for path, (conv, layer) in known.items()}


def _layer_row(
    path: str, pair: tuple[nn.Module, MHSA], check: Any, certificate: Any, verdict: Any, exercised: bool | None
) -> LayerRow:
    conv, layer = pair
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
        folded=folded(conv),
        exercised=exercised,
    )
