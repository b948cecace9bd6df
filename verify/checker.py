"""The independent checker: recomputes a certificate from the tensors of two weight files, without
the builder.

It uses numpy, fractions and the standard library, and none of the certifier's argument; safetensors
and torch, each by its own loader, say what their files hold.  It recomputes every number and
compares: a certified bound may exceed the one computed here by a thousandth, because the certifier
widens more, but may never fall below it.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from verify.recheck.certificate_file import LayerCertificate, read_document
from verify.recheck.counterexample import refuted
from verify.recheck.exact import Centre, leak, product_gap, selected
from verify.recheck.grids import Axis, NoOutput, axes_of
from verify.recheck.heads import FORMATS, StepFails, centre_at, only_zeros_by_content
from verify.recheck.layer_pair import LayerPair
from verify.recheck.rounding import magnitudes_of, rounding_of
from verify.recheck.stored_layers import StoredLayer, StoredLayers, layers_in
from verify.recheck.strict_input import NotConfirmed, Rejected
from verify.verdict import Verdict, as_html, escaped, exactly, from_above

NOT_RECHECKED = (
    "not recomputed, as that takes torch: the runs (observed, probes, step 6), torch_version, assumptions and sentences",
    "each layer is judged by itself: what runs of the whole network showed is not repeated",
)
Checker = Callable[[LayerPair], None]
# exceeds float64's relative error in a few nested sums of fewer than 2^26 nonnegative numbers
WIDEN = 1 + 2.0**-24


class Result(NamedTuple):
    """The result of a recheck: PROVED only if every layer is, and the certificate covers every
    layer of both networks.
    """

    verdict: Verdict
    layers: dict[str, Verdict]
    uncovered: tuple[str, ...]
    notes: tuple[str, ...]
    _repr_html_ = as_html

    def __str__(self) -> str:
        rows = [
            f"{escaped(name) or 'the layer'}: {verdict}" for name, verdict in self.layers.items()
        ]
        return "\n".join(
            [str(self.verdict), *rows, *(f"note: {escaped(note)}" for note in self.notes)]
        )


def check(
    certificate_path: str | Path,
    conv_path: str | Path,
    mhsa_path: str | Path,
    second: Checker = lambda pair: None,
    key: str | None = None,
) -> Result:
    """Recheck a certificate against a file with the convolutions and a file with the attention
    layers.

    It speaks of tensors: any files with these tensors will do, safetensors without torch, others by
    torch's own loader. ``second`` is another checker, called with each layer's numbers before they
    are judged here; ``key`` that of the network in the file of the convolutions, if that is a
    checkpoint of several.

    Raises:
        Rejected: a file is malformed or has other tensors, or subnormal numbers are flushed to zero;
            `NotConfirmed` if the certificate states something false.

    >>> import tempfile, construct, torch, verify, verify.argument.documents as documents
    >>> conv = torch.nn.Conv1d(1, 2, kernel_size=3)
    >>> layer = construct.conv_to_mhsa(conv)
    >>> paths = [f"{tempfile.mkdtemp()}/{name}" for name in ("c.json", "model.pt", "model.mhsa.pt")]
    >>> torch.save(conv, paths[1]); torch.save(layer, paths[2])
    >>> documents.write_document(paths[0], [("", verify.certify(conv, layer, grid=(8,)))], *paths[1:])
    >>> verify.check(*paths).verdict.name
    'PROVED'
    """
    if not 2.0**-1074 > 0:
        raise Rejected("subnormal numbers are flushed to zero here (torch.set_flush_denormal)")
    try:
        certificates, digests = read_document(certificate_path)
        files = (layers_in(conv_path, digests[0], key), layers_in(mhsa_path, digests[1]))
        return _rechecked(certificates, files, second)
    except OSError as error:
        raise Rejected(f"{error.filename}: {error.strerror}") from None
    except Rejected:
        raise
    except Exception as error:  # fail closed, whatever a malformed file raises
        raise Rejected(f"malformed file: {type(error).__name__}: {error}") from None


def _rechecked(
    certificates: Sequence[LayerCertificate],
    files: tuple[StoredLayers, StoredLayers],
    second: Checker,
) -> Result:
    """Judge every layer, and name what no certificate covers."""
    notes = list[str]()
    remarks = Counter[str]()
    assumed = 0
    layers: dict[str, Verdict] = {}
    covered = list[StoredLayer]()
    named = [file.named(_stated(certificates, side), notes) for side, file in enumerate(files)]
    for stated in certificates:
        conv, mhsa = (layers_of[stated.name] for layers_of in named)
        pair = LayerPair.read(stated, conv, mhsa)
        second(pair)
        layers[stated.name] = judge(stated, pair)
        assumed += pair.assumed
        remarks.update(pair.notes)
        covered += [conv, mhsa]
    uncovered = tuple(dict.fromkeys(path for file in files for path in file.beside(covered)))
    notes += [f"{file.name}: {note}" for file in files for note in file.notes]
    notes += [f"{count} of {len(layers)} layers: {remark}" for remark, count in remarks.items()]
    notes += [
        f"no certificate covers {name!r}, which may be a convolution or attention"
        for name in uncovered
    ]
    return Result(_of_all(layers, uncovered, assumed), layers, uncovered, (*notes, *NOT_RECHECKED))


def _stated(
    certificates: Sequence[LayerCertificate], side: int
) -> dict[str, tuple[Any, dict[str, str]]]:
    """Geometry and digests of each layer, of its convolution (0) or its attention (1)."""
    return {stated.name: (stated.geometries[side], stated.digests[side]) for stated in certificates}


def _of_all(layers: dict[str, Verdict], uncovered: tuple[str, ...], assumed: int) -> Verdict:
    """The verdict on both files: PROVED only if every layer is and none is left."""
    names = [verdict.name for verdict in layers.values()]
    summary = f"{names.count('PROVED')} of {len(names)} layers PROVED and recomputed, {len(uncovered)} not covered"
    if assumed:
        summary += (
            f"; of {assumed} the files state no geometry, so it is taken from the certificate"
        )
    if "REFUTED" in names:
        return Verdict("REFUTED", summary)
    return Verdict("PROVED" if {*names} == {"PROVED"} and not uncovered else "UNDECIDED", summary)


def judge(stated: LayerCertificate, pair: LayerPair) -> Verdict:
    """Recompute one layer's bound and compare it with the stated one."""
    prefix = f"layer {stated.name!r}: says {stated.verdict}, but "
    failure = ""
    parts: dict[str, ndarray] = {}
    exact = False
    try:
        parts, exact = parts_of(pair)
    except (StepFails, OverflowError) as failed:
        failure = f"{failed}{_of_positions(pair)}"
    if stated.verdict == "PROVED" and (failure or not stated.holds):
        raise NotConfirmed(
            prefix + (failure or "a step of its own fails, or a run exceeds the bound")
        )
    _require_parts(stated, parts, prefix)
    if stated.verdict == "REFUTED" and stated.counterexample is not None:
        return refuted(pair, stated.counterexample)
    if stated.verdict != "PROVED":
        sentence = f"not proved, the certificate itself says {stated.verdict}"
        return Verdict("UNDECIDED", f"{sentence}; here {failure}" if failure else sentence)
    return _confirmed(stated, pair, exact, prefix)


def _of_positions(pair: LayerPair) -> str:
    """What holds of a layer not proved, without those of its heads that attend by content."""
    others = replace(pair, carrying=pair.carrying & ~pair.content, notes=[])
    with suppress(StepFails, OverflowError):
        if pair.content.any() and parts_of(others)[1]:
            return "; the heads of position alone, with b_out, are the same function"
    return ""


def _require_parts(stated: LayerCertificate, parts: dict[str, ndarray], prefix: str) -> None:
    """Refuse a stated bound below the one computed here, or far above it."""
    # the certifier may count more underflows (η each)
    tolerance = 2.0 ** (80 - FORMATS[stated.dtype].log_eta)
    for name, own in parts.items():
        claimed = stated.parts[name]
        if claimed.shape != own.shape or (claimed < own).any():
            raise NotConfirmed(f"{prefix}its {name} is below what its weights give")
        if ((claimed > 1.001 * own + tolerance) & (claimed < np.inf)).any():
            raise NotConfirmed(f"{prefix}its {name} is not what its weights give")


def _confirmed(stated: LayerCertificate, pair: LayerPair, exact: bool, prefix: str) -> Verdict:
    """The verdict PROVED, if the claim follows from the bound."""
    bound = stated.parts["bound"].max(initial=0.0)
    what = "the same function"
    follows = exact
    if stated.within is not None:
        what = f"a difference of at most {exactly(stated.within)}"
        follows = bool(bound <= stated.within)
    if not follows:
        raise NotConfirmed(f"{prefix}what it claims does not follow from a bound of {bound:.3g}")
    if pair.assumed:
        what += ", with the geometry that the certificate states,"
    inputs = f"for all |x| ≤ {exactly(stated.input_bound)} up to {stated.grid}"
    return Verdict("PROVED", f"{what} {inputs}: difference ≤ {from_above(bound)}")


@np.errstate(all="ignore")
def parts_of(pair: LayerPair) -> tuple[dict[str, ndarray], bool]:
    """Steps 0 to 5: upper bounds of rounding, leakage and taps and their sum, each (D_out,).

    Returns:
        The bounds, and whether both layers are the same function: nothing leaks, and no tap or bias
        differs.

    Raises:
        StepFails: a step does not hold.
    """
    axes = same_tokens(pair)
    tokens = math.prod(len(axis.tokens) for axis in axes)
    only_zeros_by_content(pair, axes, tokens)
    centres = targets(pair, axes)
    log_eta = FORMATS[pair.stated.dtype].log_eta
    leaks = np.array([leak(centre, log_eta) if centre else 0.0 for centre in centres])
    soft = bool(leaks.any())
    if soft and pair.content.any():
        raise StepFails("step 5 (rounding): heads leak beside attention by content")
    sizes = magnitudes_of(pair)
    if not 2 * sizes.largest < FORMATS[pair.stated.dtype].largest:
        raise StepFails("step 5 (rounding): an intermediate may overflow")
    rounding = rounding_of(pair, sizes, tokens, soft)
    gaps = differences(pair, centres)
    biases = np.abs(pair.a["b_out"] - pair.bias)
    parts = {
        "rounding": above(rounding, True),
        "leakage": above(2 * (leaks[:, None] * sizes.through).sum(axis=0), soft),
        "taps": above(pair.stated.input_bound * gaps + biases, (gaps > 0) | (biases > 0)),
    }
    parts["bound"] = above(parts["rounding"] + parts["leakage"] + parts["taps"], True)
    if not np.isfinite(parts["bound"]).all():
        raise StepFails("step 5 (rounding): no finite bound, or more terms than provided for here")
    return parts, not (soft or gaps.any() or biases.any())


def same_tokens(pair: LayerPair) -> list[Axis]:
    """Step 0: the two geometries agree, and every tap reads the same input as the head at its
    shift.
    """
    g = pair.conv
    if g != pair.mhsa:
        raise StepFails("step 0 (tokens): the two layers have different geometries")
    try:
        axes = axes_of(g, pair.stated.grid)
    except NoOutput as error:
        raise StepFails(f"step 0 (tokens): {error}") from None
    for number, axis in enumerate(axes):
        for tap, tau in enumerate(g.steps(number)):
            keys = axis.queries + tau
            if (
                keys[0] < 0
                or keys[-1] >= len(axis.tokens)
                or (axis.tokens[keys] != axis.reads(tap)).any()
            ):
                raise StepFails(
                    f"step 0 (tokens), axis {number}: tap {tap} and a head at {tau} read different inputs"
                )
    return axes


def targets(pair: LayerPair, axes: list[Axis]) -> list[Centre | None]:
    """Step 2: where each head looks, for every wanted query on the grid."""
    centres = [centre_at(pair, head, axes) for head in range(len(pair.a["v"]))]
    for head, centre in enumerate(centres):
        if centre and not pair.conv.reaches(centre.shift):
            raise StepFails(
                f"step 2 (target): head {head} looks at {centre.shift}, off the grid of some size"
            )
    return centres


def differences(pair: LayerPair, centres: list[Centre | None]) -> ndarray:
    """Step 4: Σ_i |Σ_h W_val^h W_out^h − W_j| over all shifts, (D_out,); 0 only where all are
    exactly equal.
    """
    taps = dict(zip(pair.conv.shifts(), pair.kernel, strict=True))
    heads_at: dict[tuple[int, ...], list[int]] = {shift: [] for shift in taps}
    for head, centre in enumerate(centres):
        if centre:
            heads_at.setdefault(centre.shift, []).append(head)
    total = np.zeros(pair.conv.d_out)
    slow = 0
    for shift, heads in heads_at.items():
        tap = taps.get(shift, np.zeros_like(pair.kernel[0]))
        factors = [(pair.a["w_val"][head], pair.a["w_out"][head]) for head in heads]
        product = None if factors else np.zeros_like(tap)
        if len(factors) == 1:
            product = selected(*factors[0])
        if product is None:
            slow += 1
            gap = product_gap(factors, tap)
        else:
            gap = np.abs(product - tap)
        total += gap.sum(axis=1).reshape(-1)
    if slow:
        pair.notes.append(
            f"exact integer products, which are slower, at {slow} of {len(heads_at)} shifts"
        )
    return total


def above(value: ndarray, nonzero: ndarray | bool) -> ndarray:
    """The value widened by more than its rounding error where it can be nonzero; else exactly 0."""
    return np.where(nonzero, np.nextafter(value * WIDEN, np.inf), 0.0)
