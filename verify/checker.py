"""The independent checker: recomputes a certificate from the tensors of two weight files, without the builder.

It uses numpy, fractions and the standard library, and none of the certifier's argument; safetensors and torch, each by its own
loader, say what their files hold.  It recomputes every number and compares:
a certified bound may exceed the one computed here by a thousandth, because the certifier widens more, but may never fall
below it.
"""

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from verify.recheck.certificate_file import LayerCertificate, read_document
from verify.recheck.exact import Centre, NoCentre, centre_of, finite_scores, gamma, leak, product_gap, selected
from verify.recheck.grids import Axis, NoOutput, axes_of, read_by_taps, sizes_of
from verify.recheck.layer_pair import LayerPair
from verify.recheck.stored_layers import StoredLayer, layers_in
from verify.recheck.strict_input import NotConfirmed, Rejected
from verify.verdict import Verdict, as_html, escaped, exactly, from_above

NOT_RECHECKED = (
    "not recomputed, as that takes torch: the runs (observed, probes, step 6), torch_version, assumptions and sentences",
    "each layer is judged by itself: what runs of the whole network showed is not repeated",
)
FORMATS = {  # u and log2(1/η) of the arithmetic; u and η of the stored numbers where they are coarser; the largest number
    "float16": (2.0**-24, 149, 2.0**-11, 2.0**-24, 65504.0),
    "bfloat16": (2.0**-24, 149, 2.0**-8, 2.0**-133, (2 - 2.0**-7) * 2.0**127),
    "float32": (2.0**-24, 149, 0.0, 0.0, (2 - 2.0**-23) * 2.0**127),
    "float64": (2.0**-53, 1074, 0.0, 0.0, (2 - 2.0**-52) * 2.0**1023),
}
Checker = Callable[[LayerPair], None]
WIDEN = 1 + 2.0**-24  # exceeds float64's relative error in a few nested sums of fewer than 2^26 nonnegative numbers


class Result(NamedTuple):
    """The result of a recheck: PROVED only if every layer is, and the certificate covers every layer of both networks."""

    verdict: Verdict
    layers: dict[str, Verdict]
    uncovered: tuple[str, ...]
    notes: tuple[str, ...]
    _repr_html_ = as_html

    def __str__(self) -> str:
        rows = [f"{escaped(name) or 'the layer'}: {verdict}" for name, verdict in self.layers.items()]
        return "\n".join([str(self.verdict), *rows, *(f"note: {escaped(note)}" for note in self.notes)])


class StepFails(ValueError):
    """A step of the argument does not hold."""


def check(
    certificate_path: str | Path,
    conv_path: str | Path,
    mhsa_path: str | Path,
    second: Checker = lambda pair: None,
    key: str | None = None,
) -> Result:
    """Recheck a certificate against a file with the convolutions and a file with the attention layers.

    It speaks of tensors: any files with these tensors will do, safetensors without torch, others by torch's own loader.
    ``second`` is another checker, called with each layer's numbers before they are judged here; ``key`` that of the network
    in the file of the convolutions, if that is a checkpoint of several.

    Raises:
        Rejected: a file is malformed or has other tensors; `NotConfirmed` if the certificate states something false.

    >>> import tempfile, construct, torch, verify, verify.argument.documents as documents
    >>> conv = torch.nn.Conv1d(1, 2, kernel_size=3)
    >>> layer = construct.conv_to_mhsa(conv)
    >>> paths = [f"{tempfile.mkdtemp()}/{name}" for name in ("c.json", "model.pt", "model.mhsa.pt")]
    >>> torch.save(conv, paths[1]); torch.save(layer, paths[2])
    >>> documents.write_document(paths[0], [("", verify.certify(conv, layer, grid=(8,)))], *paths[1:])
    >>> verify.check(*paths).verdict.name
    'PROVED'
    """
    notes, remarks, assumed = list[str](), Counter[str](), 0
    layers: dict[str, Verdict] = {}
    covered = list[StoredLayer]()
    try:
        certificates, digests = read_document(certificate_path)
        files = layers_in(conv_path, digests[0], key), layers_in(mhsa_path, digests[1])
        stated_of = [{c.name: (c.geometries[side], c.digests[side]) for c in certificates} for side in (0, 1)]
        named = [file.named(stated_of[side], notes) for side, file in enumerate(files)]
        for stated in certificates:
            stored = [layers_of[stated.name] for layers_of in named]
            second(pair := LayerPair.read(stated, *stored))
            layers[stated.name], assumed = judge(stated, pair), assumed + pair.assumed
            remarks.update(pair.notes)
            covered += stored
    except OSError as error:
        raise Rejected(f"{error.filename}: {error.strerror}") from None
    except Exception as error:  # fail closed, whatever a malformed file raises
        what = f"malformed file: {type(error).__name__}: {error}"
        raise error if isinstance(error, Rejected) else Rejected(what) from None
    uncovered = dict.fromkeys(path for file in files for path in file.beside(covered))
    notes += [f"{file.name}: {note}" for file in files for note in file.notes]
    notes += [f"{count} of {len(layers)} layers: {remark}" for remark, count in remarks.items()]
    notes += [f"no certificate covers {name!r}, which may be a convolution or attention" for name in uncovered]
    names = [verdict.name for verdict in layers.values()]
    summary = f"{names.count('PROVED')} of {len(names)} layers PROVED and recomputed, {len(uncovered)} not covered"
    summary += f"; of {assumed} the files state no geometry, so it is taken from the certificate" if assumed else ""
    name = "PROVED" if {*names} == {"PROVED"} and not uncovered else "UNDECIDED"
    verdict = Verdict("REFUTED" if "REFUTED" in names else name, summary)
    return Result(verdict, layers, tuple(uncovered), (*notes, *NOT_RECHECKED))


def judge(stated: LayerCertificate, pair: LayerPair) -> Verdict:
    """Recompute one layer's bound and compare it with the stated one."""
    prefix, failure, parts, exact = f"layer {stated.name!r}: says {stated.verdict}, but ", "", {}, False
    try:
        parts, exact = parts_of(pair)
    except (StepFails, OverflowError) as failed:
        failure = str(failed)
    if stated.verdict == "PROVED" and (failure or not stated.holds):
        raise NotConfirmed(prefix + (failure or "a step of its own fails, or a run exceeds the bound"))
    tolerance = 2.0 ** (80 - FORMATS[stated.dtype][1])  # the certifier may count more underflows (η each)
    for name, own in parts.items():
        claimed = stated.parts[name]
        if claimed.shape != own.shape or (claimed < own).any():
            raise NotConfirmed(f"{prefix}its {name} is below what its weights give")
        if ((claimed > 1.001 * own + tolerance) & (claimed < np.inf)).any():
            raise NotConfirmed(f"{prefix}its {name} is not what its weights give")
    if stated.verdict == "REFUTED" and stated.counterexample is not None:
        return refuted(pair, stated.counterexample)
    if stated.verdict != "PROVED":
        here = f"; here {failure}" if failure else ""
        return Verdict("UNDECIDED", f"not proved, the certificate itself says {stated.verdict}{here}")
    most = stated.parts["bound"].max(initial=0.0)
    if not (exact if stated.within is None else most <= stated.within):
        raise NotConfirmed(f"{prefix}what it claims does not follow from a bound of {most:.3g}")
    what = "the same function" if stated.within is None else f"a difference of at most {exactly(stated.within)}"
    what += ", with the geometry that the certificate states," if pair.assumed else ""
    inputs = f"for all |x| ≤ {exactly(stated.input_bound)} up to {stated.grid}"
    return Verdict("PROVED", f"{what} {inputs}: difference ≤ {from_above(most)}")


@np.errstate(all="ignore")
def parts_of(pair: LayerPair) -> tuple[dict[str, np.ndarray], bool]:
    """Steps 0 to 5: upper bounds of rounding, leakage and taps and their sum, each (D_out,).

    Returns:
        The bounds, and whether both layers are the same function: nothing leaks, and no tap or bias differs.

    Raises:
        StepFails: a step does not hold.
    """
    weights, bound, axes = pair.a, pair.stated.input_bound, same_tokens(pair)
    u, log_eta, stored_u, stored_eta, largest = FORMATS[pair.stated.dtype]
    if pair.content.any():
        raise StepFails(f"step 1 (content): head {np.argmax(pair.content)} attends by content")
    centres = [centre_at(pair, head, axes) for head in range(len(weights["v"]))]
    for head, centre in enumerate(centres):
        if centre and not all(0 <= pair.conv.anchor(i) + n <= pair.conv.span(i) for i, n in enumerate(centre.shift)):
            raise StepFails(f"step 2 (target): head {head} looks at {centre.shift}, off the grid of some size")
    leaks = np.array([leak(centre, log_eta) if centre else 0.0 for centre in centres])
    (heads, _, d_in, head_dim), taps = weights["w_val"].shape, len(pair.kernel)
    tokens, soft, eta = math.prod(len(axis.tokens) for axis in axes), bool(leaks.any()), 2.0**-log_eta
    # B Σ|W_val||W_out| for each head, and the sum of the magnitudes of all terms, per output channel.
    w_val, w_out = np.abs(weights["w_val"]), np.abs(weights["w_out"])
    into = bound * w_val.sum(axis=2)
    through = np.matmul(into[:, :, None], w_out).reshape(heads, -1)
    size_c = bound * np.abs(pair.kernel).sum(axis=(0, 2)).reshape(-1) + np.abs(pair.bias)
    size_a = through.sum(axis=0) + np.abs(weights["b_out"])
    outward = w_out.sum(axis=(0, 2)).reshape(-1)
    by_column = np.matmul(w_val.max(axis=2, initial=0)[:, :, None], w_out).max(initial=0)
    folded = min(by_column, np.matmul(w_val, w_out.max(axis=3, initial=0)[..., None]).max(initial=0))  # |W_val W_out|
    content = [bound * np.abs(weights[name]).sum(axis=1).max(initial=0) for name in ("w_qry", "w_key")]
    if not 2 * float(np.max([bound, folded, *content, into.max(initial=0), *size_c, *size_a])) < largest:
        raise StepFails("step 5 (rounding): an intermediate may overflow")
    # Rounded operations per term: (X W_val) W_out, or X (W_val W_out) folded.  Soft heads add sums over at most T + d keys and
    # d softmaxes, whose weights below 2^−100 may be dropped.
    dims, n_conv = len(axes), d_in * taps + 1
    n_att = max(d_in + heads * head_dim, head_dim + heads * d_in) + 1 + (2 * tokens + 4 + 12 * dims) * soft
    rounding = gamma(n_conv, u) * size_c + gamma(n_att, u) * size_a
    # An underflow errs by η, times the factors that follow; the softmax may give η instead of 0 at T − 1 keys.
    lost = n_conv + heads * head_dim + d_in * outward + heads * d_in * (1 + head_dim * bound)
    if soft:
        carried = np.matmul(w_val.sum(axis=2)[:, :, None], w_out).sum(axis=0).reshape(-1)
        lost = lost + (tokens + dims) * (outward + carried)
        rounding += (tokens + dims) * 2.0**-100 * size_a
    rounding += eta * lost
    rounding += (tokens - 1) * eta * through.sum(axis=0)
    if stored_u:
        rounding += stored_u * ((taps + 2) * size_c + size_a + (taps + 3) * rounding) + (taps + 3) * stored_eta
    gaps, biases = differences(pair, centres), np.abs(weights["b_out"] - pair.bias)
    parts = {
        "rounding": above(rounding, True),
        "leakage": above(2 * (leaks[:, None] * through).sum(axis=0), soft),
        "taps": above(bound * gaps + biases, (gaps > 0) | (biases > 0)),
    }
    parts["bound"] = above(parts["rounding"] + parts["leakage"] + parts["taps"], True)
    if not np.isfinite(parts["bound"]).all() or n_conv + n_att > 2**26:
        raise StepFails("step 5 (rounding): the bound is not finite, or sums more than is provided for here")
    return parts, not (soft or gaps.any() or biases.any())


def same_tokens(pair: LayerPair) -> list[Axis]:
    """Step 0: the two geometries agree, and every tap reads the same input as the head at its shift."""
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
            if keys[0] < 0 or keys[-1] >= len(axis.tokens) or (axis.tokens[keys] != axis.reads(tap)).any():
                raise StepFails(f"step 0 (tokens), axis {number}: tap {tap} and a head at {tau} read different inputs")
    return axes


def centre_at(pair: LayerPair, head: int, axes: list[Axis]) -> Centre | None:
    """Step 2: where a head looks; None if it carries only zeros, because finite attention times 0 is 0."""
    widest = [max(int(axis.queries[-1]), len(axis.tokens) - 1 - int(axis.queries[0])) for axis in axes]
    numbers = (pair.a["v"][head], pair.a["w_key_pos"][head], pair.radix, widest)
    try:
        return centre_of(*numbers) if pair.carrying[head] else finite_scores(*numbers)
    except NoCentre as error:
        raise StepFails(f"step 2 (target): head {head} {error}") from None


def differences(pair: LayerPair, centres: list[Centre | None]) -> np.ndarray:
    """Step 4: Σ_i |Σ_h W_val^h W_out^h − W_j| over all shifts, (D_out,); 0 only where all are exactly equal."""
    taps = dict(zip(pair.conv.shifts(), pair.kernel, strict=True))
    heads_at: dict[tuple[int, ...], list[int]] = {shift: [] for shift in taps}
    for head, centre in enumerate(centres):
        if centre:
            heads_at.setdefault(centre.shift, []).append(head)
    total, slow = np.zeros(pair.conv.d_out), 0
    for shift, heads in heads_at.items():
        tap = taps.get(shift, np.zeros_like(pair.kernel[0]))
        factors = [(pair.a["w_val"][head], pair.a["w_out"][head]) for head in heads]
        product = selected(*factors[0]) if len(factors) == 1 else None if factors else np.zeros_like(tap)
        slow += product is None
        gap = product_gap(factors, tap) if product is None else np.abs(product - tap)
        total += gap.sum(axis=1).reshape(-1)
    if slow:
        pair.notes.append(f"exact integer products, which are slower, at {slow} of {len(heads_at)} shifts")
    return total


def refuted(pair: LayerPair, counter: dict[str, Any]) -> Verdict:
    """Step 7: evaluate both layers exactly on the counterexample; each head reads its key, or the nearest on the grid."""
    prefix = f"layer {pair.stated.name!r}: the counterexample "
    if "shapes" in counter:
        sizes = tuple(sizes_of(g, pair.stated.grid) for g in (pair.conv, pair.mhsa))
        if sizes != counter["shapes"] or sizes[0] is None or sizes[0] == sizes[1]:
            raise NotConfirmed(f"{prefix}names other sizes than the outputs', {sizes[0]} and {sizes[1]}, or equal ones")
        return Verdict("REFUTED", f"the convolution's output has size {sizes[0]}, the attention's {sizes[1] or 'none'}")
    channel, *place = counter["output"]
    conv_axes, mhsa_axes = axes_of(pair.conv, pair.stated.grid), axes_of(pair.mhsa, pair.stated.grid)
    sizes = [len(axis.queries) for axis in conv_axes]
    same = sizes == [len(axis.queries) for axis in mhsa_axes] and pair.conv[-3:] == pair.mhsa[-3:]
    if pair.content.any() or not same or any(at >= size for at, size in zip(place, sizes, strict=True)):
        raise NotConfirmed(prefix + "cannot be evaluated")
    _, _, d_in, d_out = pair.kernel.shape
    group, o = divmod(channel, d_out)
    outputs = [Fraction(float(pair.bias[channel])), Fraction(float(pair.a["b_out"][channel]))]
    sources = read_by_taps(pair.conv, conv_axes, place)
    for (source, *position), value in counter["input"].items():
        inside = all(x < n for x, n in zip(position, pair.stated.grid, strict=True))
        if not inside or source >= pair.conv.d_in or abs(value) > Fraction(pair.stated.input_bound):
            raise NotConfirmed(prefix + "is no input that the claim is about")
        if source // d_in != group:
            continue
        for tap, read in zip(pair.kernel, sources, strict=True):
            if read == tuple(position):
                outputs[0] += value * Fraction(float(tap[group, source % d_in, o]))
        for head in np.flatnonzero(pair.carrying):
            centre = centre_at(pair, int(head), mhsa_axes)
            assert centre is not None
            keys = [int(axis.queries[at]) + n for axis, at, n in zip(mhsa_axes, place, centre.shift, strict=True)]
            nearest = [min(max(key, 0), len(axis.tokens) - 1) for key, axis in zip(keys, mhsa_axes, strict=True)]
            if leak(centre, FORMATS[pair.stated.dtype][1]) or (pair.radix is not None and keys != nearest):
                raise NotConfirmed(prefix + f"rests on head {head}, which is not one-hot")
            if [int(axis.tokens[key]) for axis, key in zip(mhsa_axes, nearest, strict=True)] == position:
                row, column = pair.a["w_val"][head, group, source % d_in], pair.a["w_out"][head, group, :, o]
                terms = (Fraction(float(x)) * Fraction(float(y)) for x, y in zip(row, column, strict=True))
                outputs[1] += value * sum(terms, Fraction(0))
    if outputs != [counter["convolution"], counter["attention"]] or outputs[0] == outputs[1]:
        raise NotConfirmed(prefix + "gives other outputs than it says, or equal ones")
    if pair.stated.within is not None and abs(outputs[0] - outputs[1]) <= Fraction(pair.stated.within):
        raise NotConfirmed(prefix + "gives outputs that differ by no more than what the claim allows")
    difference = f"the convolution is exactly {outputs[0]}, the attention {outputs[1]}"
    return Verdict("REFUTED", f"at output {counter['output']} {difference}")


def above(value: np.ndarray, nonzero: np.ndarray | bool) -> np.ndarray:
    """The value widened by more than its rounding error where it can be nonzero; else exactly 0."""
    return np.where(nonzero, np.nextafter(value * WIDEN, np.inf), 0.0)
