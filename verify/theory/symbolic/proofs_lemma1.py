"""Proof steps of Lemma 1: heads that each attend one key compute the convolution tap by tap.

One-hot attention is assumed here; `verify.theory.symbolic.proofs_theorem` derives it from the
code's encoding.  The convolution is its definition with symbols for kernel, bias and every token of
the padded grid, for any padding mode.
"""

from collections.abc import Sequence
from math import prod

import sympy

from verify.theory.symbolic.proof import Proof, ProofStep, cited, from_assumptions, ge, identity, le
from verify.theory.symbolic.proof_positions import Setting, Vector, positions, sides
from verify.theory.symbolic.proofs_scores import on_grid, small, symbols

CHANNELS = (2, 2)
"""D_in and D_out of the small convolutions."""


class SymbolicConvolution(Setting):
    """A small symbolic convolution, Y[o] = b + Σ_j X̃[s·o + dil·j] W_j; ``size`` is the size of the
    padded input X̃.
    """

    @property
    def x(self) -> sympy.Matrix:
        """X̃, (tokens, D_in)."""
        return sympy.Matrix([symbols("x_" + "_".join(map(str, k)), CHANNELS[0]) for k in self.keys])

    @property
    def w(self) -> list[sympy.Matrix]:
        """W_j for every tap, D_in × D_out."""
        named = ("w_" + "_".join(map(str, j)) for j in self.taps)
        return [sympy.Matrix(*CHANNELS, symbols(name, prod(CHANNELS))) for name in named]

    @property
    def b(self) -> sympy.Matrix:
        """The bias, 1 × D_out."""
        return sympy.Matrix([symbols("b", CHANNELS[1])])

    @property
    def sides(self) -> str:
        """The grid and the kernel, in words."""
        return f"{on_grid(self.size)} with kernel {sides(self.kernel)}"

    def __str__(self) -> str:
        return f"{self.sides}, stride {sides(self.s)}, dilation {sides(self.dil)}"


def cases(dims: int) -> tuple[SymbolicConvolution, SymbolicConvolution]:
    """A plain convolution in d dimensions, and one with stride and dilation; axes beyond the third
    have length 1.
    """
    kernel = small(dims, (3,), (3, 2), (2, 2, 2))
    size = small(dims, (5,), (3, 3), (3, 2, 2))
    far = small(dims, (3,), (2, 2), (3, 1, 2))
    wide = small(dims, (7,), (5, 4), (7, 2, 3))
    dilation = small(dims, (2,), (2, 3), (2, 3, 2))
    strided = SymbolicConvolution(far, wide, stride=(2,) * dims, dilation=dilation)
    return SymbolicConvolution(kernel, size), strided


def convolution(case: SymbolicConvolution, kernel: Sequence[sympy.Matrix]) -> sympy.Matrix:
    """The definition, (outputs, D_out): Y[o] = b + Σ_j X̃[s·o + dil·j] W_j."""
    row = {tuple(token): case.x.row(number) for number, token in enumerate(case.keys)}
    rows = []
    for o in positions(case.outputs):
        y = case.b
        for j, w in zip(case.taps, kernel, strict=True):
            read = tuple(
                s * x + dil * t for s, x, dil, t in zip(case.s, o, case.dil, j, strict=True)
            )
            y += row[read] * w
        rows.append(y)
    return sympy.Matrix.vstack(*rows)


def attention(
    case: SymbolicConvolution,
    heads: Sequence[sympy.Matrix],
    w_val: Sequence[sympy.Matrix],
    w_out: Sequence[sympy.Matrix],
) -> sympy.Matrix:
    """Eq. 3, (queries, D_out): MHSA(X) = b + Σ_h P^h X W_val^h W_out^h, with P^h (queries, tokens)."""
    x = case.x
    ones = sympy.ones(len(case.queries), 1)
    total = ones * case.b
    for p, val, out in zip(heads, w_val, w_out, strict=True):
        total += p * x * val * out
    return total


def one_hot(case: SymbolicConvolution, shift: Vector) -> sympy.Matrix:
    """The attention of a head that attends only the key at query + shift, (queries, tokens)."""
    return sympy.Matrix(case.one_hot(shift))


def place_steps() -> list[ProofStep | Proof]:
    """The position that a head reads on any grid, with symbols for all sizes: per axis, then for
    all axes together.
    """
    s, dil = sympy.symbols("s dil", integer=True, positive=True)
    o, j, o_rest, j_rest, extra = sympy.symbols("o j o' j' e", integer=True, nonnegative=True)
    anchor = dil * sympy.floor(sympy.Rational(1, 2) * (j + j_rest))  # K = j + j' + 1
    query = s * o + anchor
    shift = dil * j - anchor
    # the last token, where o + o' is the last output
    last = s * (o + o_rest) + dil * (j + j_rest) + extra
    read = [
        identity(
            "the query of output o is s o + a and tau_j = dil j - a: query + tau_j = s o + dil j",
            (query + shift, s * o + dil * j),
        ),
        from_assumptions(
            "that is a token of the padded grid, for every output o and every tap j",
            ge(query + shift, 0),
            le(query + shift, last),
        ),
    ]
    return [
        Proof(
            "query + τ_j = s·o + dil·j, for all outputs o and taps j: a padded token", tuple(read)
        ),
        cited(
            "so for all bijections f and grids, if W_val W_out = W_j",
            "lemma1",
            "attend_concatenated",
        ),
    ]


def lemma1_steps(dims: int) -> list[ProofStep | Proof]:
    """Lemma 1 on small grids, entry by entry: hard attention by any bijection, both factorisations,
    stride, dilation.
    """
    plain, strided = cases(dims)
    return [
        *place_steps(),
        Proof(
            f"{plain.sides}: MHSA(X) = Conv(X), each entry, for all X, W, b",
            tuple(_equality_steps(plain)),
        ),
        Proof(f"and {strided}", tuple(_equality_steps(strided))),
    ]


def _equality_steps(case: SymbolicConvolution) -> list[ProofStep]:
    """Equality for both factorisations, the second with the heads in another order."""
    w = case.w
    shifts = case.shifts
    eye_in, eye_out = map(sympy.eye, CHANNELS)
    expected = convolution(case, w)
    given = [one_hot(case, shift) for shift in shifts]
    order = list(range(1, len(w), 2)) + list(range(0, len(w), 2))[::-1]
    moved = attention(case, [given[h] for h in order], [eye_in] * len(w), [w[h] for h in order])
    return [
        identity(
            f"{case}: with W_val = W_j and W_out = I, one-hot attention (given) is the convolution, entry by entry",
            *zip(
                attention(case, given, w, [eye_out] * len(w)).flat(), expected.flat(), strict=True
            ),
        ),
        identity(
            f"{case}: the same with W_val = I and W_out = W_j, heads in the order {order}",
            *zip(moved.flat(), expected.flat(), strict=True),
        ),
    ]
