"""Claims about Theorem 1, both lemmas and the shapes of kernels."""

from typing import Any

import sympy

from verify.theory.literature.judgement import (
    Check,
    Judgement,
    by_coq,
    by_proof,
    by_steps,
    claim,
    proved,
    refuted,
)
from verify.theory.literature.shared_checks import reads_the_same
from verify.theory.symbolic import lemmas, proof_positions
from verify.theory.symbolic.proof import Proof, ProofStep
from verify.theory.symbolic.proof_algebra import linear
from verify.theory.symbolic.proof_positions import Setting
from verify.theory.symbolic.proofs_lemma2 import gap_steps, score_steps
from verify.theory.symbolic.proofs_scores import indexed, integers, minus, plus

IMAGE = Setting((3, 3), (5, 6), (1, 1))
YIELDS = (
    r"there exists some vector $\mathbf{v}(\tau)$ that yields $\text{softmax}(\mathbf{A}_{q,:})_k = 1$ if $k - q = \tau$, "
    "and zero otherwise."
)


@claim(
    "theorem-limit",
    "As α → ∞, K² heads with a relative encoding of D_p ≥ 3 compute any K×K convolution of a padded image.",
    r"a relative positional encoding of dimension $D_p \geq 3$ can express any 2D convolutional layer",
    "talk, Main Theorem",
)
def theorem_limit() -> Judgement:
    """Proved in Coq, in the limit that the talk's own summary asks for; the code's encoding by
    sympy; and compared on grids.
    """
    return proved(
        by_coq("theorem1_paper", "theorem1_limit"),
        by_proof(lambda: lemmas.prove_theorem(2)),
        reads_the_same(Setting((3, 3), (3, 4), (1, 1))),
        reads_the_same(Setting((5, 5), (4, 4), (2, 2))),
    )


@claim(
    "lemma-1",
    "Under assumption (9), with a bijection onto the shifts and D_h ≥ D_out, some W_val (and W_out) gives any kernel.",
    r"there exists $\{\mathbf{W}_{val}^{(h)}\}_{h \in [N_h]}$ such that $\text{MHSA}(\mathbf{X}) = "
    r"\text{Conv}(\mathbf{X})$, for any kernel tensor",
    "talk, Lemma 1",
)
def lemma_1() -> Judgement:
    """Proved in Coq, with assumption (9) as hypothesis; and by sympy on small grids, entry by entry."""
    return proved(
        by_coq("lemma1"), any_matrix_is_a_product(), by_proof(lambda: lemmas.prove_lemma1(2))
    )


def any_matrix_is_a_product() -> Check:
    """Any D_in × D_out matrix W is [W, 0]·[I; 0], a W_val of width D_h = D_out + m and a W_out."""
    d_in, d_out = sympy.symbols("D_in D_out", integer=True, positive=True)
    more = sympy.Symbol("m", integer=True, nonnegative=True)
    w = sympy.MatrixSymbol("W", d_in, d_out)
    w_val = sympy.BlockMatrix([[w, sympy.ZeroMatrix(d_in, more)]])
    w_out = sympy.BlockMatrix([[sympy.Identity(d_out)], [sympy.ZeroMatrix(more, d_out)]])
    return Check(
        "W = [W, 0]·[I; 0] for every D_h ≥ D_out", sympy.block_collapse(w_val * w_out) == w, "sympy"
    )


@claim(
    "lemma-2",
    "Some vector v gives a head all of its attention on the key at q + τ, and none on the others.",
    YIELDS,
    "talk, Lemma 2",
)
def lemma_2() -> Judgement:
    """No finite v does; the limit does, by Coq, and by sympy for the code's encoding."""
    return refuted(
        by_coq("never_one_hot"),
        stands="the limit for α → ∞, which the lemma's own proof takes, wherever q + τ is a pixel",
        statement="as α → ∞ the softmax tends to 1 on the key at q + τ and to 0 on all others, wherever q + τ is a pixel",
        instead=proved(
            by_coq("score_gap", "softmax_limit"), by_proof(lambda: lemmas.prove_lemma2(2))
        ),
    )


@claim(
    "any-dimension",
    "The construction works in any number d of dimensions, with D_p = d + 1.",
    "can be extended in a straightforward manner to cover $K$-dimensional convolutions, with $D_p = K + 1$.",
    "talk, Lemma 2: Summary",
)
def any_dimension() -> Judgement:
    """Proved in Coq; the code's encoding by sympy, and the oracle agrees, in one to four
    dimensions.
    """
    settings = (
        Setting((3,), (5,), (1,)),
        Setting((3, 2), (3, 4), (1, 0)),
        Setting((2, 3, 2), (3, 3, 2), (0, 1, 1)),
        Setting((2, 2, 3, 2), (3, 2, 3, 2), (0, 0, 1, 1)),
    )
    lengths = [proof_positions.code_length(setting.dims) for setting in settings]
    return proved(
        by_coq("theorem1"),
        by_steps("the code's score and its gap", _score_steps, "d ≤ 4"),
        Check(f"D_p is {lengths} for d = 1, 2, 3, 4", lengths == [2, 3, 4, 5]),
        *map(reads_the_same, settings),
    )


def _score_steps() -> list[ProofStep | Proof]:
    return [step for d in (1, 2, 3, 4) for step in (*score_steps(d), *gap_steps(d))]


@claim(
    "flipped-kernel",
    "Writing the convolution with X_{i−δ}, its kernel flipped, changes nothing in the theorem.",
    "Does not affect the outcome of the theorem.",
    "talk, Self-Attention for Images, Convolution",
)
def flipped_kernel() -> Judgement:
    """The sum is over a symmetric set."""
    what = "Σ_τ X_{q−τ} W_τ = Σ_τ X_{q+τ} W_{−τ} over −r, …, r on every axis"
    return proved(by_steps(what, _flipping_steps, "d ≤ 3"))


def _flipping_steps() -> list[ProofStep]:
    r = sympy.Symbol("r", integer=True, nonnegative=True)
    x = indexed("X")
    w = indexed("W")
    sums = []
    for dims in (1, 2, 3):
        q = integers("q", dims)
        tau = integers("tau", dims)
        box = [(t, -r, r) for t in tau]
        back: Any = sympy.Sum(x[minus(q, tau)] * w[tau], *box)
        for t in tau:
            back = back.change_index(t, -t)
        sums.append((back, sympy.Sum(x[plus(q, tau)] * w[tuple(-t for t in tau)], *box)))
    return [linear("with −τ for τ, which the set allows", *sums)]


sparse = claim(
    "sparse",
    "Leaving pixels out of Δ_K gives the sparse convolution without these taps.",
    r"Expresses “sparse convolution” if we remove some pixels from being attended to in $\Delta_K$",
    "talk, Do Self-Attention Layers Actually Learn Convolutions?",
)(lambda: proved(by_coq("theorem1")))  # for any finite set of shifts
as_expressive = claim(
    "as-expressive",
    "With enough heads, one a tap, a layer on padded tokens expresses whatever a convolutional layer does, as α → ∞.",
    "a multi-head self-attention layer with sufficient number of heads is at least as expressive as any convolutional layer",
    "abstract",
)(lambda: proved(by_coq("theorem1", "geometry_theorem1")))
any_layer = claim(
    "any-layer",
    "Self-attention can express any convolutional layer: with one head a tap, on padded tokens, as α → ∞.",
    "can express any **Convolutional Layer**.",
    "slides, Conclusion",
)(lambda: proved(by_coq("theorem1", "geometry_theorem1")))
