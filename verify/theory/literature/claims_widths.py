"""Claims on the head dimension D_h and what it can express."""

from typing import Any

import numpy as np
import sympy

from verify.theory.literature import equations
from verify.theory.literature.claims_heads import PLANE, compares, spread_attention, unfolded
from verify.theory.literature.equations import Setting
from verify.theory.literature.judgement import (
    Check,
    Judgement,
    by_proof,
    by_steps,
    claim,
    corrected,
    experiment,
    proved,
    refuted,
)
from verify.theory.symbolic import lemmas
from verify.theory.symbolic.proof import ProofStep, argued, from_assumptions
from verify.theory.symbolic.proof_algebra import ranks
from verify.theory.symbolic.proofs_scores import symbols

LINE = Setting((2,), (6,))


@claim(
    "channels-sufficient",
    "paper, Theorem 1",
    "Heads of width D_h in a layer of D_out outputs express any convolution with min(D_h, D_out) output channels.",
)
def channels_sufficient() -> Judgement:
    """W_val is the tap and W_out an identity, cut or padded, for narrower and wider heads."""
    checks = []
    for head_dim, d_out in ((2, 4), (4, 2), (3, 3)):
        channels = min(head_dim, d_out)
        weight = equations.integers(head_dim, channels, 5, 3, 3)
        eye = np.eye(head_dim, d_out, dtype=int)
        w_val = [np.pad(tap, ((0, 0), (0, head_dim - channels))) for tap in equations.tap_matrices(weight)]
        values = [tap @ eye for tap in w_val]
        what = f"D_h = {head_dim}, D_out = {d_out}, {channels} channels"
        checks.append(compares(PLANE, equations.hard_heads(PLANE), values, weight, what, slice(channels)))
    return proved(by_proof(lambda: lemmas.prove_lemma1(2)), *checks)


@claim(
    "channels-limit",
    "paper, Theorem 1, its min(D_h, D_out) read as a limit",
    "Heads of width D_h express convolutions of no more than min(D_h, D_out) output channels.",
)
def channels_limit() -> Judgement:
    """With one input channel every tap has rank one, so D_h = 1 is enough for any number of outputs."""
    weight = equations.integers(4, 5, 1, 3, 3)
    taps = equations.tap_matrices(weight)
    eye = np.eye(1, dtype=int)
    generic = [equations.rank(tap) for tap in equations.tap_matrices(equations.integers(5, 4, 3, 3, 3))]
    return refuted(
        compares(
            PLANE, equations.hard_heads(PLANE), [eye @ tap for tap in taps], weight, "1 → 5 channels with D_h = 1"
        ),
        instead=corrected(
            """one-hot heads on distinct shifts need D_h ≥ the rank of every tap, which is at most min(D_in, D_out), and that
            suffices""",
            Check(f"the 9 taps of a random 3 → 4 kernel have ranks {generic}", set(generic) == {3}),
            _factored(2, "4 → 4 channels, taps of rank 2, with D_h = 2"),
            by_steps("W_val W_out has rank D_h at most, here 1", lambda: [_product_rank(1)]),
        ),
    )


def _factored(head_dim: int, what: str) -> Check:
    """Taps of rank D_h, as products W_val W_out."""
    w_val, w_out = equations.integers(31, 9, 4, head_dim), equations.integers(32, 9, head_dim, 4)
    values = [val @ out for val, out in zip(w_val, w_out, strict=True)]
    weight = np.stack(values, axis=-1).transpose(1, 0, 2).reshape(4, 4, 3, 3)
    value_ranks = {equations.rank(value) for value in values}
    check = compares(PLANE, equations.hard_heads(PLANE), values, weight, what)
    return Check(f"{check.finding} (ranks {value_ranks})", check.holds and value_ranks == {head_dim})


def _product_rank(head_dim: int) -> ProofStep:
    """A product through D_h numbers, all of them symbols."""
    size = head_dim + 1
    thin = sympy.Matrix(size, head_dim, symbols("a", size * head_dim))
    wide = sympy.Matrix(head_dim, size, symbols("b", size * head_dim))
    return ranks(f"W_val W_out of D_h = {head_dim} has rank {head_dim} at most", (thin * wide, head_dim))


@claim(
    "tap-rank",
    "paper, Theorem 1, the head width read as a limit for any attention",
    "A kernel whose taps have rank 2 cannot be had from heads of width 1, one for each tap.",
)
def tap_rank() -> Judgement:
    """The taps A + B and A + 3B from two heads of rank one that spread their attention."""
    a, b = (np.multiply.outer(equations.integers(s, 2), equations.integers(s + 1, 2)) for s in (21, 23))
    weight = np.stack([a + b, a + 3 * b], axis=-1).transpose(1, 0, 2)  # (D_out, D_in, 2)
    ranks = [equations.rank(tap) for tap in equations.tap_matrices(weight)]
    widths = [equations.rank(values) for values in (2 * a, 4 * b)]
    heads = [spread_attention(LINE, [1, 1]), spread_attention(LINE, [1, 3])]
    hard = equations.rank(equations.read_by_heads(LINE, equations.hard_heads(LINE)).reshape(2, -1))
    return refuted(
        Check(
            f"the taps A + B and A + 3B have ranks {ranks}, the heads {widths}", ranks == [2, 2] and widths == [1, 1]
        ),
        compares(LINE, heads, [2 * a, 4 * b], weight, "attention (½, ½) on 2A and (¼, ¾) on 4B"),
        instead=corrected(
            "it holds for one-hot heads on distinct shifts: the shift matrices are independent, so W_val W_out must be the tap",
            Check(f"the attention of 2 one-hot heads has rank {hard}", hard == 2),
            by_steps("W_val W_out of D_h = 1 has rank 1 at most", lambda: [_product_rank(1)]),
        ),
    )


@claim(
    "width-loses-nothing",
    "talk, D_out = N_h·D_h, taken as a statement about what can be expressed",
    "With D_out = N_h·D_h nothing is lost: K heads of that width still express any convolution of width K.",
)
def width_loses_nothing() -> Judgement:
    """The taps I and J of a complex multiplication: no two heads of width one compute it, whatever they attend."""
    weight = complex_taps()
    taps = equations.tap_matrices(weight)
    rank = equations.rank(unfolded(weight))
    shifts = equations.rank(equations.read_by_taps(LINE).reshape(2, -1))
    return refuted(
        Check(
            f"2 taps of 2 → 2 channels, unfolded rank {rank}, independent shifts: {shifts}", rank == 2 and shifts == 2
        ),
        by_steps(
            "so two heads' matrices lie in the span of the taps, where none but 0 has rank 1",
            lambda: _no_rank_one(taps),
        ),
        instead=corrected(
            "D_h = min(D_in, D_out) loses nothing",
            compares(LINE, equations.hard_heads(LINE), taps, weight, "the same kernel with D_h = 2"),
            compares(
                PLANE,
                equations.hard_heads(PLANE),
                equations.tap_matrices(equations.integers(8, 3, 3, 3, 3)),
                equations.integers(8, 3, 3, 3, 3),
                "a random 3 → 3 kernel with D_h = 3",
            ),
        ),
    )


def complex_taps() -> np.ndarray:
    """A kernel (2, 2, 2) with the taps I and J = [[0, −1], [1, 0]]."""
    taps = np.array([[[1, 0], [0, 1]], [[0, -1], [1, 0]]], dtype=object)
    return taps.transpose(2, 1, 0)


def _no_rank_one(taps: list[np.ndarray]) -> list[ProofStep]:
    """det(aV + bW) > 0 unless a = b = 0: once for a ≠ 0, once for b ≠ 0."""
    two = "two heads equal in rank to two taps span what the taps span, so each head's matrix is a combination of the taps"
    steps = [argued(two, sympy.ImmutableMatrix(taps[0]))]
    for first, second in (taps, taps[::-1]):
        nonzero, other = sympy.Symbol("a", real=True, nonzero=True), sympy.Symbol("b", real=True)
        combined: Any = nonzero * sympy.Matrix(first) + other * sympy.Matrix(second)
        steps.append(from_assumptions("det > 0", sympy.Gt(combined.det(), 0, evaluate=False)))
    return steps


@claim(
    "width-best",
    "talk",
    "It is best to choose the widths so that D_out = N_h·D_h.",
)
def width_best() -> Judgement:
    """A preference about cost and training."""
    return experiment(
        """a preference: what it costs in expressiveness is judged in the row above; whether such a layer trains better is for an
        experiment to say"""
    )


CLAIMS = (channels_sufficient, channels_limit, tap_rank, width_loses_nothing, width_best)
