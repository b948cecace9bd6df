"""The independent checker: a certificate rechecked from the two weight files alone, without torch and without the builder.

A second implementation of THEORY.md, "What a certificate says": numpy, fractions and the standard library, and none of the
certifier's reasoning.  Every number is worked out again and the certificate's are only compared: a claim may exceed the bound
found here by a thousandth, for it has been widened more; it may not fall below it by anything.
"""

import hashlib
import math
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from verify.recheck.arrays import Rejected, layers_in
from verify.recheck.exact import Aim, NoAim, aim_of, finite_scores, leak, product_gap, selected
from verify.recheck.grids import Axis, Geometry, NoOutput, axis_of, read_by_taps
from verify.recheck.pairs import Pair
from verify.recheck.statements import Claim, read_document
from verify.recheck.unwrapping import by_certified_name
from verify.verdict import Verdict

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
WIDEN = 1 + 2.0**-24  # more than float64 loses in sums of fewer than 2^26 numbers, none negative, a few levels deep


class Result(NamedTuple):
    """What was found: PROVED only if every layer is, and no layer of either file is left uncovered."""

    verdict: Verdict
    layers: dict[str, Verdict]
    uncovered: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        rows = [
            f"{(name if name.isprintable() else ascii(name)) or 'the layer'}: {v}" for name, v in self.layers.items()
        ]
        return "\n".join([str(self.verdict), *rows, *(f"note: {note}" for note in self.notes)])


class Fails(ValueError):
    """A step of the argument does not go through."""


def check(certificate_path: str | Path, conv_path: str | Path, mhsa_path: str | Path) -> Result:
    """Recheck a certificate file against the file with the convolutions and the file with the attention layers.

    Raises:
        Rejected: a file is damaged or odd, or the document says something that is not so.
    """
    notes: list[str] = []
    layers: dict[str, Verdict] = {}
    assumed = 0
    try:
        document = read_document(certificate_path)
        with Path(conv_path).open("rb") as conv_file, Path(mhsa_path).open("rb") as mhsa_file:
            found, claimed = [], [claim.name for claim in document.claims]
            for file, stated in zip((conv_file, mhsa_file), document.digests, strict=True):
                if stated is None:
                    notes.append(f"the certificate holds no digest of the whole file {file.name}")
                elif stated != hashlib.file_digest(file, "sha256").hexdigest():
                    raise Rejected(f"{file.name} is not the file that was certified: its sha256 differs")
                found.append(by_certified_name(layers_in(file, file.name), claimed, file.name, notes))
            for claim in document.claims:
                pair = Pair.read(claim, found[0][claim.name], found[1][claim.name])
                layers[claim.name], assumed = judge(claim, pair), assumed + pair.assumed
                notes += [f"layer {claim.name!r}: {note}" for note in pair.notes]
    except OSError as error:
        raise Rejected(f"{error.filename}: {error.strerror}") from None
    except Exception as error:  # whatever odd input makes of the code below: it fails closed
        raise error if isinstance(error, Rejected) else Rejected(f"odd: {type(error).__name__}: {error}") from None
    covered = {id(held[name]) for held in found for name in layers}  # one module under two names is one layer
    uncovered = tuple(dict.fromkeys(name for held in found for name, layer in held.items() if id(layer) not in covered))
    notes += [f"no certificate covers {name!r}" for name in uncovered]
    names = [verdict.name for verdict in layers.values()]
    name = "PROVED" if {*names} == {"PROVED"} and not uncovered else "UNDECIDED"
    told = f"{names.count('PROVED')} of {len(names)} layers PROVED and recomputed, {len(uncovered)} not covered"
    told += f"; of {assumed} the files state no geometry, so it is taken from the certificate" if assumed else ""
    return Result(Verdict("REFUTED" if "REFUTED" in names else name, told), layers, uncovered, (*notes, *NOT_RECHECKED))


def judge(claim: Claim, pair: Pair) -> Verdict:
    """Work one layer out afresh, and compare."""
    told, failure, parts, exact = f"layer {claim.name!r}: says {claim.verdict}, but ", "", {}, False
    try:
        parts, exact = parts_of(pair)
    except (Fails, OverflowError) as failed:
        failure = str(failed)
    if claim.verdict == "PROVED" and (failure or not claim.holds):
        raise Rejected(told + (failure or "a step of its own fails, or a run exceeds the bound"))
    room = 2.0 ** (80 - FORMATS[claim.dtype][1])  # for counting η more generously
    for name, own in parts.items():
        claimed = claim.parts[name]
        if claimed.shape != own.shape or (claimed < own).any():
            raise Rejected(f"{told}its {name} is below what its weights give")
        if ((claimed > 1.001 * own + room) & (claimed < np.inf)).any():
            raise Rejected(f"{told}its {name} is not what its weights give")
    if not claim.plausible:
        raise Rejected(f"{told}its tightness is not its bound over what was observed")
    if claim.verdict == "REFUTED" and claim.counterexample is not None:
        return refuted(pair, claim.counterexample)
    if claim.verdict != "PROVED":
        here = f"; here {failure}" if failure else ""
        return Verdict("UNDECIDED", f"not proved, the certificate itself says {claim.verdict}{here}")
    most = claim.parts["bound"].max(initial=0.0)
    if not (exact if claim.within is None else most <= claim.within):
        raise Rejected(f"{told}what it claims does not follow from a bound of {most:.3g}")
    what = "the same function" if claim.within is None else f"a difference of at most {claim.within:g}"
    what += ", with the geometry that the certificate states," if pair.assumed else ""
    return Verdict("PROVED", f"{what} for all |x| ≤ {claim.input_bound:g} up to {claim.grid}: difference ≤ {most:.3g}")


@np.errstate(over="ignore", invalid="ignore")
def parts_of(pair: Pair) -> tuple[dict[str, np.ndarray], bool]:
    """Steps 0 to 5: rounding, leakage, taps and their sum, each (D_out,) and from above.

    Returns:
        They, and whether it is one function: no head leaks anything, and no tap or bias differs.

    Raises:
        Fails: a step does not go through.
    """
    a, bound, axes = pair.a, pair.claim.input_bound, same_tokens(pair)
    u, log_eta, stored_u, stored_eta, largest = FORMATS[pair.claim.dtype]
    if pair.loud.any():
        raise Fails(f"step 1 (content): head {np.argmax(pair.loud)} attends by content")
    aims = [aim_at(pair, head, axes) for head in range(len(a["v"]))]
    for head, aim in enumerate(aims):
        if aim and not all(0 <= pair.conv.anchor(i) + n <= pair.conv.span(i) for i, n in enumerate(aim.shift)):
            raise Fails(f"step 2 (aim): head {head} looks at {aim.shift}, off the grid of some size")
    leaks = np.array([leak(aim, log_eta) if aim else 0.0 for aim in aims])
    (heads, _, d_in, head_dim), taps = a["w_val"].shape, len(pair.kernel)
    tokens, soft, eta = math.prod(len(axis.tokens) for axis in axes), bool(leaks.any()), 2.0**-log_eta
    # B Σ|W_val||W_out| of every head, and the size of all that is added up, per output channel.
    w_val, w_out = np.abs(a["w_val"]), np.abs(a["w_out"])
    into = bound * w_val.sum(axis=2)
    through = np.matmul(into[:, :, None], w_out).reshape(heads, -1)
    size_c = bound * np.abs(pair.kernel).sum(axis=(0, 2)).reshape(-1) + np.abs(pair.bias)
    size_a = through.sum(axis=0) + np.abs(a["b_out"])
    outward = w_out.sum(axis=(0, 2)).reshape(-1)
    by_column = np.matmul(w_val.max(axis=2, initial=0)[:, :, None], w_out).max(initial=0)
    folded = min(by_column, np.matmul(w_val, w_out.max(axis=3, initial=0)[..., None]).max(initial=0))  # |W_val W_out|
    content = [bound * np.abs(a[name]).sum(axis=1).max(initial=0) for name in ("w_qry", "w_key")]
    if not 2 * float(np.max([bound, folded, *content, into.max(initial=0), *size_c, *size_a])) < largest:
        raise Fails("step 5 (rounding): an intermediate may overflow")
    # Operations that a term passes: (X W_val) W_out, or X (W_val W_out) folded.  Soft: sums over keys, at most T + d of them,
    # with d softmaxes, whose weights below 2^−100 may be dropped.
    dims, n_conv = len(axes), d_in * taps + 1
    n_att = max(d_in + heads * head_dim, head_dim + heads * d_in) + 1 + (2 * tokens + 4 + 12 * dims) * soft
    rounding = gamma(n_conv, u) * size_c + gamma(n_att, u) * size_a
    # A product that underflows is off by η, and what becomes of it; η at the T − 1 keys where 0 is meant.
    lost = n_conv + heads * head_dim + d_in * outward + heads * d_in * (1 + head_dim * bound)
    if soft:
        carried = np.matmul(w_val.sum(axis=2)[:, :, None], w_out).sum(axis=0).reshape(-1)
        lost = lost + (tokens + dims) * (outward + carried)
        rounding += (tokens + dims) * 2.0**-100 * size_a
    rounding += eta * lost
    rounding += (tokens - 1) * eta * through.sum(axis=0)
    if stored_u:
        rounding += stored_u * ((taps + 2) * size_c + size_a + (taps + 3) * rounding) + (taps + 3) * stored_eta
    gaps, biases = differences(pair, aims), np.abs(a["b_out"] - pair.bias)
    parts = {
        "rounding": above(rounding, True),
        "leakage": above(2 * (leaks[:, None] * through).sum(axis=0), soft),
        "taps": above(bound * gaps + biases, (gaps > 0) | (biases > 0)),
    }
    parts["bound"] = above(parts["rounding"] + parts["leakage"] + parts["taps"], True)
    if not np.isfinite(parts["bound"]).all() or n_conv + n_att > 2**26:
        raise Fails("step 5 (rounding): the bound is not finite, or sums more than is provided for here")
    return parts, not (soft or gaps.any() or biases.any())


def same_tokens(pair: Pair) -> list[Axis]:
    """Step 0: one geometry, and every tap and the head at its shift read the same input."""
    g = pair.conv
    if g != pair.mhsa:
        raise Fails("step 0 (tokens): the two layers have different geometries")
    axes = axes_of(g, pair.claim.grid)
    for number, axis in enumerate(axes):
        for tap, tau in enumerate(g.steps(number)):
            keys = axis.queries + tau
            if keys[0] < 0 or keys[-1] >= len(axis.tokens) or (axis.tokens[keys] != axis.reads(tap)).any():
                raise Fails(f"step 0 (tokens): on axis {number}, tap {tap} and the head at {tau} read different inputs")
    return axes


def axes_of(g: Geometry, grid: tuple[int, ...]) -> list[Axis]:
    """The axes of a grid."""
    if len(grid) != len(g.kernel):
        raise Rejected(f"the grid {grid} does not fit a kernel {g.kernel}")
    try:
        return [axis_of(g, axis, n) for axis, n in enumerate(grid)]
    except NoOutput as error:
        raise Fails(f"step 0 (tokens): {error}") from None


def sizes_of(g: Geometry, grid: tuple[int, ...]) -> tuple[int, ...] | None:
    """The spatial size of the output, or None if there is none."""
    try:
        return tuple(len(axis.queries) for axis in axes_of(g, grid))
    except Fails:
        return None


def aim_at(pair: Pair, head: int, axes: list[Axis]) -> Aim | None:
    """Step 2: where a head looks; None if it carries nothing, as finite attention times 0 is 0."""
    widest = [max(int(axis.queries[-1]), len(axis.tokens) - 1 - int(axis.queries[0])) for axis in axes]
    numbers = (pair.a["v"][head], pair.a["w_key_pos"][head], pair.radix, widest)
    try:
        return aim_of(*numbers) if pair.carrying[head] else finite_scores(*numbers)
    except NoAim as error:
        raise Fails(f"step 2 (aim): head {head} {error}") from None


def differences(pair: Pair, aims: list[Aim | None]) -> np.ndarray:
    """Step 4: Σ_i |Σ_h W_val^h W_out^h − W_j| over all shifts, (D_out,); 0 only where all are exactly equal."""
    taps = dict(zip(pair.conv.shifts(), pair.kernel, strict=True))
    at: dict[tuple[int, ...], list[int]] = {shift: [] for shift in taps}
    for head, aim in enumerate(aims):
        if aim:
            at.setdefault(aim.shift, []).append(head)
    total, slow = np.zeros(pair.conv.d_out), 0
    for shift, heads in at.items():
        tap = taps.get(shift, np.zeros_like(pair.kernel[0]))
        factors = [(pair.a["w_val"][head], pair.a["w_out"][head]) for head in heads]
        product = selected(*factors[0]) if len(factors) == 1 else None if factors else np.zeros_like(tap)
        slow += product is None
        gap = product_gap(factors, tap) if product is None else np.abs(product - tap)
        total += gap.sum(axis=1).reshape(-1)
    if slow:
        pair.notes.append(f"exact integer products, which are slower, at {slow} of {len(at)} shifts")
    return total


def refuted(pair: Pair, counter: dict[str, Any]) -> Verdict:
    """Step 7: both layers evaluated exactly on the counterexample, every head at its key, or the nearest one that there is."""
    told = f"layer {pair.claim.name!r}: the counterexample "
    if "shapes" in counter:
        sizes = tuple(sizes_of(g, pair.claim.grid) for g in (pair.conv, pair.mhsa))
        if sizes != counter["shapes"] or sizes[0] is None or sizes[0] == sizes[1]:
            raise Rejected(told + f"names other sizes than the outputs have, {sizes[0]} and {sizes[1]}, or equal ones")
        return Verdict("REFUTED", f"the convolution's output has size {sizes[0]}, the attention's {sizes[1] or 'none'}")
    channel, *place = counter["output"]
    theirs, ours = axes_of(pair.conv, pair.claim.grid), axes_of(pair.mhsa, pair.claim.grid)
    sizes = [len(axis.queries) for axis in theirs]
    same = sizes == [len(axis.queries) for axis in ours] and pair.conv[-3:] == pair.mhsa[-3:]
    if pair.loud.any() or not same or any(at >= size for at, size in zip(place, sizes, strict=True)):
        raise Rejected(told + "cannot be evaluated")
    _, _, d_in, d_out = pair.kernel.shape
    group, o = divmod(channel, d_out)
    outputs = [Fraction(float(pair.bias[channel])), Fraction(float(pair.a["b_out"][channel]))]
    met = read_by_taps(pair.conv, theirs, place)
    for (source, *position), value in counter["input"].items():
        inside = all(x < n for x, n in zip(position, pair.claim.grid, strict=True))
        if not inside or source >= pair.conv.d_in or abs(value) > Fraction(pair.claim.input_bound):
            raise Rejected(told + "is no input that the claim is about")
        if source // d_in != group:
            continue
        for tap, read in zip(pair.kernel, met, strict=True):
            if read == tuple(position):
                outputs[0] += value * Fraction(float(tap[group, source % d_in, o]))
        for head in np.flatnonzero(pair.carrying):
            aim = aim_at(pair, int(head), ours)
            assert aim is not None
            keys = [int(axis.queries[at]) + n for axis, at, n in zip(ours, place, aim.shift, strict=True)]
            nearest = [min(max(key, 0), len(axis.tokens) - 1) for key, axis in zip(keys, ours, strict=True)]
            if leak(aim, FORMATS[pair.claim.dtype][1]) or (pair.radix is not None and keys != nearest):
                raise Rejected(told + f"rests on head {head}, which is not one-hot")
            if [int(axis.tokens[key]) for axis, key in zip(ours, nearest, strict=True)] == position:
                row, column = pair.a["w_val"][head, group, source % d_in], pair.a["w_out"][head, group, :, o]
                terms = (Fraction(float(x)) * Fraction(float(y)) for x, y in zip(row, column, strict=True))
                outputs[1] += value * sum(terms, Fraction(0))
    if outputs != [counter["convolution"], counter["attention"]] or outputs[0] == outputs[1]:
        raise Rejected(told + "gives other outputs than it says, or equal ones")
    if pair.claim.within is not None and abs(outputs[0] - outputs[1]) <= Fraction(pair.claim.within):
        raise Rejected(told + "gives outputs that differ by no more than what the claim allows")
    told = f"at output {counter['output']} the convolution is exactly {outputs[0]}, the attention {outputs[1]}"
    return Verdict("REFUTED", told)


def gamma(n: int, u: float) -> float:
    """γ_n = n·u/(1 − n·u)."""
    return n * u / (1 - n * u) if n * u < 1 else math.inf


def above(value: np.ndarray, some: np.ndarray | bool) -> np.ndarray:
    """Widened by more than it lost on the way, where there is something at all; else exactly 0."""
    return np.where(some, np.nextafter(value * WIDEN, np.inf), 0.0)
