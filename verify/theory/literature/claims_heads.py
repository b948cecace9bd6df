"""Claims on the number of heads, their sum, and what a head attends."""

from fractions import Fraction

import numpy as np
import sympy

from verify.theory.literature import equations
from verify.theory.literature.claims_theorem import reads_the_same
from verify.theory.literature.equations import Setting, Vector
from verify.theory.literature.judgement import (
    Check,
    Judgement,
    by_proof,
    by_steps,
    claim,
    corrected,
    proved,
    refuted,
)
from verify.theory.symbolic import lemmas
from verify.theory.symbolic.proof import ProofStep, argued, from_assumptions

PLANE = Setting((3, 3), (4, 5), (1, 1))


def compares(
    setting: Setting,
    heads: list[np.ndarray],
    values: list[np.ndarray],
    weight: np.ndarray,
    what: str,
    channels: slice = slice(None),
) -> Check:
    """Eq. 3 with these heads against the oracle's convolution of ``weight`` on random integers, without rounding."""
    x, bias = equations.integers(11, weight.shape[1], *setting.size), equations.integers(12, len(weight))
    wanted = setting.convolution(weight, bias)(x[None]).reshape(len(weight), -1).T
    output = equations.mix(heads, setting.tokens(x), values)[:, channels] + bias
    same = output.shape == wanted.shape
    differing = int(np.not_equal(output, wanted).sum()) if same else wanted.size
    return Check(f"{what}: {differing} of {wanted.size} outputs differ from the convolution", differing == 0)


def unfolded(weight: np.ndarray) -> np.ndarray:
    """The taps of a kernel (D_out, D_in, *K) as the rows of one matrix, (taps, D_in·D_out)."""
    return np.array(equations.tap_matrices(weight)).reshape(-1, weight.shape[0] * weight.shape[1])


@claim(
    "heads-sufficient",
    "paper, Theorem 1; blog",
    "K² heads are enough for every K×K convolution, with a bias and any number of channels.",
)
def heads_sufficient() -> Judgement:
    """One head a tap, K = 1 to 4, on random integers."""
    checks = []
    for k in (1, 2, 3, 4):
        setting, weight = Setting((k, k), (5, 4), (k // 2, k // 2)), equations.integers(k, 3, 2, k, k)
        heads = equations.hard_heads(setting)
        checks.append(Check(f"{len(heads)} heads for K = {k}", len(heads) == k * k))
        checks.append(compares(setting, heads, equations.tap_matrices(weight), weight, f"K = {k}"))
    return proved(by_proof(lambda: lemmas.prove_lemma1(2)), *checks)


@claim(
    "heads-necessary",
    "paper, Theorem 1, its √N_h × √N_h read as a need",
    "A K×K convolution needs K² heads.",
)
def heads_necessary() -> Judgement:
    """A blur needs one head, a one-channel kernel of both signs exactly two, a generic kernel all K²."""
    blur = np.multiply.outer(equations.integers(1, 3, 2), np.ones((3, 3), dtype=int).astype(object))
    one = spread_attention(PLANE, [1] * 9)
    two, weight = _by_sign(equations.integers(2, 1, 1, 3, 3))
    generic = unfolded(equations.integers(3, 3, 3, 3, 3))
    shifts = equations.rank(equations.read_by_taps(PLANE).reshape(9, -1))
    return refuted(
        compares(
            PLANE, [one], [9 * equations.tap_matrices(blur)[0]], blur, "a 3×3 blur of 2 → 3 channels with one head"
        ),
        compares(PLANE, two[0], two[1], weight, "a 3×3 kernel of one channel and both signs with two heads"),
        instead=corrected(
            """N_h is at least the rank of the taps, unfolded as a matrix of taps × (D_in·D_out): all K² for a generic kernel with
            D_in·D_out ≥ K²; and that is not always enough, as a one-channel kernel of both signs has rank 1 and needs two""",
            by_proof(lemmas.prove_head_count),
            Check(f"9 shift matrices on a padded 4×5 image have rank {shifts}", shifts == 9),
            Check(
                f"a random 3×3 kernel of 3 → 3 channels has rank {equations.rank(generic)}",
                equations.rank(generic) == 9,
            ),
            Check(
                f"the kernel of both signs has rank {equations.rank(unfolded(weight))}",
                equations.rank(unfolded(weight)) == 1,
            ),
            Check(
                f"and {_signs(weight)} signs, of which a head, its weights never negative, has one", _signs(weight) == 2
            ),
        ),
    )


def spread_attention(setting: Setting, shares: list[int]) -> np.ndarray:
    """The attention that gives tap j the share shares_j of the whole: fractions (Q, T).

    It is the limit β → ∞ of a softmax over positions with scores ln(share) at taps with a share and −β elsewhere.
    """
    hits = equations.given_heads(setting, setting.shifts)
    total = sum(shares)
    return sum((Fraction(s, total) * hit for s, hit in zip(shares, hits, strict=True)), start=0 * hits[0])


def _by_sign(weight: np.ndarray) -> tuple[tuple[list[np.ndarray], list[np.ndarray]], np.ndarray]:
    """Two heads for a one-channel kernel: one for its positive taps, one for its negative ones."""
    flat = [int(x) for x in weight.reshape(-1)]
    parts = [[max(sign * x, 0) for x in flat] for sign in (1, -1)]
    values = [np.array([[sign * sum(part)]], dtype=object) for sign, part in zip((1, -1), parts, strict=True)]
    return ([spread_attention(PLANE, part) for part in parts], values), weight


def _signs(weight: np.ndarray) -> int:
    """The number of distinct signs."""
    return len({bool(x > 0) for x in weight.reshape(-1)})


@claim(
    "heads-add-up",
    "paper, Eq. 3 and the proof of Lemma 1",
    "Concatenating the heads and multiplying once by W_out is the same as adding up the heads, each multiplied by its own block.",
)
def heads_add_up() -> Judgement:
    """Symbolically, and on random integers."""
    heads = equations.hard_heads(PLANE)
    x = PLANE.tokens(equations.integers(1, 2, 4, 5))
    w_val, w_out = equations.integers(2, 9, 2, 3), equations.integers(3, 9, 3, 4)
    beside = np.concatenate([p @ x @ val for p, val in zip(heads, w_val, strict=True)], axis=1)
    at_once = beside @ w_out.reshape(27, 4)
    summed = equations.mix(heads, x, [val @ out for val, out in zip(w_val, w_out, strict=True)])
    differing = int(np.not_equal(at_once, summed).sum())
    return proved(
        by_proof(lambda: lemmas.prove_lemma1(1)),
        Check(f"9 heads of random integers: {differing} of {summed.size} outputs differ", differing == 0),
    )


@claim(
    "translation-group",
    "talk",
    "Attention that is uniform over a window, 1 where |δ − τ| ≤ R, would also suffice to express every convolution.",
)
def translation_group() -> Judgement:
    """The span of the windows contains no single tap unless R < 1."""
    rank_pairs = {(radius, dims): _ranks_with_windows(radius, dims) for dims in (1, 2) for radius in (0, 1, 2)}
    wide = {case: (alone, extended) for case, (alone, extended) in rank_pairs.items() if case[0] >= 1}
    single = {case: (alone, extended) for case, (alone, extended) in rank_pairs.items() if case[0] == 0}
    listed = ", ".join(f"{alone} and {more} (R = {r}, d = {d})" for (r, d), (alone, more) in wide.items())
    same = ", ".join(f"{alone} and {more} (d = {d})" for (_, d), (alone, more) in single.items())
    blur = np.ones((1, 1, 3, 3), dtype=int).astype(object)
    return refuted(
        Check(
            f"the windows at the shifts of a kernel of width 3 have rank, without and with a single tap added: {listed}",
            all(alone == 3**d and more == alone + 1 for (_, d), (alone, more) in wide.items()),
        ),
        by_steps("and no finite combination of windows of 2R + 1 > 1 keys is a single tap", _not_a_unit_steps),
        instead=corrected(
            """it suffices for R < 1, where the window is one key and this is Theorem 1; for R ≥ 1 such heads give exactly the
            kernels that are a window blurred by another kernel""",
            Check(f"R = 0: {same}", all(alone == more == 3**d for (_, d), (alone, more) in single.items())),
            reads_the_same(PLANE),
            compares(
                PLANE,
                [spread_attention(PLANE, [1] * 9)],
                [np.array([[9]], dtype=object)],
                blur,
                "one window is a 3×3 box blur",
            ),
        ),
    )


def window(tau: Vector, radius: int, reach: int) -> np.ndarray:
    """1 where every |δ_i − τ_i| ≤ R, over the shifts δ of the cube from −reach to reach, flattened."""
    axes = [(np.abs(np.arange(-reach, reach + 1) - t) <= radius).astype(int) for t in tau]
    total = axes[0]
    for axis in axes[1:]:
        total = np.multiply.outer(total, axis)
    return total.reshape(-1)


def _ranks_with_windows(radius: int, dims: int) -> tuple[int, int]:
    """The rank of the windows at all shifts of a kernel of width 3, and of the same with a single tap added."""
    shifts = Setting((3,) * dims, (3,) * dims).shifts
    rows = [window(tau, radius, 1 + radius) for tau in shifts]
    tap = window((0,) * dims, 0, 1 + radius)
    return equations.rank(rows), equations.rank([*rows, tap])


def _not_a_unit_steps() -> list[ProofStep]:
    """A combination of windows is c(z)·(1 + z + … + z^2R): its lowest and highest terms are at least 2R apart."""
    low, length = sympy.Symbol("m", integer=True), sympy.Symbol("L", integer=True, nonnegative=True)
    radius = sympy.Symbol("R", integer=True, positive=True)
    apart = (low + length + 2 * radius) - low
    return [
        argued("the lowest and the highest term of a product of polynomials are products of theirs, and not 0", apart),
        from_assumptions("m and m + L + 2R are two taps, not one", sympy.Gt(apart, 0, evaluate=False)),
    ]


CLAIMS = (
    heads_sufficient,
    heads_necessary,
    heads_add_up,
    translation_group,
)
