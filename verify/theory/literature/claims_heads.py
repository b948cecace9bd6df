"""Claims about the number of heads, their widths, their sum, and heads that are translates of one
another.
"""

import numpy as np
import sympy

from verify.theory.literature import equations
from verify.theory.literature.claims_encoding import unmoved_steps
from verify.theory.literature.claims_theorem import any_matrix_is_a_product
from verify.theory.literature.judgement import (
    Check,
    Judgement,
    by_coq,
    by_proof,
    by_steps,
    claim,
    open_claim,
    proved,
    refuted,
)
from verify.theory.literature.shared_checks import PLANE, compares
from verify.theory.symbolic import lemmas
from verify.theory.symbolic.proof import ProofStep, argued
from verify.theory.symbolic.proof_algebra import linear
from verify.theory.symbolic.proofs_scores import indexed, integers, plus, reals

WIDTHS = r"to express $D_h$ convolutional filters, it is best to simply let $D_{out} = N_h D_h$"
ONE_SUM = "Σ_h (Σ_δ p_h(δ) X_{q+δ}) W_h = Σ_δ X_{q+δ} (Σ_h p_h(δ) W_h), for any heads and channels"
LEARN = "talk, Do Self-Attention Layers Actually Learn Convolutions?"


heads_sufficient = claim(
    "heads-sufficient",
    "K² heads are enough for every K×K convolution, with a bias and any number of channels.",
    "the number of pixels in the receptive field of the convolutional kernel is related to the number of heads by "
    r"$$N_h = K \times K$$",
    "blog, Multi-Head Self-Attention Layer",
)(lambda: proved(by_coq("theorem1"), by_proof(lambda: lemmas.prove_lemma1(2))))


@claim(
    "multiple-heads",
    "For some kernels several heads are necessary: one head makes none of both signs at one pair of channels.",
    "This is maybe the first explanation why multiple heads are necessary.",
    "blog, last paragraph but two",
)
def multiple_heads() -> Judgement:
    """Proved in Coq for any scores, including content; our addition head-count says how many heads
    are needed.
    """
    return proved(by_coq("two_heads_needed"))


channels_sufficient = claim(
    "channels-sufficient",
    "K² heads of width D_h express any K×K convolution of min(D_h, D_out) output channels.",
    r"$\sqrt{N_h} \times \sqrt{N_h}$ and $\min(D_h, D_{out})$ output channels",
    "slides, Self-Attention on Images, Theorem 1",
)(lambda: proved(by_coq("theorem1_paper")))


@claim(
    "channels-limit",
    "A layer expresses at most min(D_h, D_out) linearly independent filters, if W is the kernel.",
    r"The number of linearly independent filters expressible by $\mathbf{W}$ is clearly limited by $\min(D_h, D_{out})$.",
    "talk, Lemma 1: Summary",
)
def channels_limit() -> Judgement:
    """With one input channel every tap has rank one, so D_h = 1 suffices for any number of outputs."""
    weight = equations.integers(4, 5, 1, 3, 3)
    filters = equations.rank(weight.reshape(5, -1))
    return refuted(
        compares(
            PLANE,
            equations.hard_heads(PLANE),
            equations.tap_matrices(weight),
            weight,
            "1 → 5 channels, D_h = 1",
        ),
        Check(f"the 5 filters have rank {filters}", filters == 5),
        stands="the rank of one head's W^(h) = W_val W_out is so limited",
        statement="D_h = D_in is enough for any number of filters",
        instead=proved(by_coq("narrow_heads", "theorem1_limit")),
    )


width_best = open_claim(
    "width-best",
    "It is best to choose the widths so that D_out = N_h·D_h.",
    WIDTHS,
    "talk, Lemma 1: Summary",
    "a preference; its shapes fit one head alone (see the slips)",
)


@claim(
    "factoring",
    "Each pair W_val, W_out can be replaced by one matrix W^(h), and any W^(h) is such a pair if D_h ≥ D_out.",
    "each pair of matrices can be replaced by a learned matrix W(h) for each head.",
    "review, 1.1. Lemma 1",
)
def factoring() -> Judgement:
    """W_val = [W, 0] and W_out = [I; 0]."""
    return proved(any_matrix_is_a_product())


@claim(
    "translates",
    "Heads whose attention is a translate of one profile make one convolution (on an unbounded or wrapped grid).",
    "MHSA expresses a single convolution operation when attention probabilities are all elements of a *translation group*.",
    LEARN,
)
def translates() -> Judgement:
    """All heads whose attention depends on k − q alone qualify; three profiles on a wrapped grid,
    one on a bounded grid.
    """
    return proved(
        by_steps(ONE_SUM, _profile_steps, "d ≤ 3"),
        _on_a_wrapped_grid(),
        _renormalised(),
    )


def _profile_steps() -> list[ProofStep]:
    x = indexed("X")
    p = indexed("p")
    w = indexed("W")
    h, c, o = sympy.symbols("h c o", integer=True)
    sums = []
    for dims in (1, 2, 3):
        q = integers("q", dims)
        delta = integers("delta", dims)
        box = [(shift, -sympy.oo, sympy.oo) for shift in delta]
        share = p[(h, *delta)]
        token = x[(*plus(q, delta), c)]
        matrix = w[h, c, o]
        sums.append(
            (matrix * sympy.Sum(share * token, *box), sympy.Sum(token * (share * matrix), *box))
        )
    return [
        linear(
            "W_h Σ_δ p_h(δ) X_(q+δ) = Σ_δ X_(q+δ) p_h(δ) W_h, for every head and every pair of channels",
            *sums,
        ),
        argued(
            "over finitely many heads and channels the sums add up: Σ_δ p_h(δ) = 1, so for bounded X they converge",
            sums[0][0],
        ),
    ]


def _on_a_wrapped_grid() -> Check:
    """Three heads with integer profiles over the shifts of a 3×3 kernel, on a wrapped 4×5 grid."""
    profiles = equations.integers(1, 3, 9)
    w = equations.integers(2, 3, 2, 2)
    x = equations.integers(3, 2, 4, 5)
    read = equations.read_by_taps(PLANE, "circular").astype(object)
    output = equations.mix(list(np.tensordot(profiles, read, axes=1)), x.reshape(2, -1).T, list(w))
    kernel = np.tensordot(profiles.T, w, axes=1).transpose(2, 1, 0).reshape(2, 2, 3, 3)
    expected = PLANE.convolution(kernel, mode="circular")(x[None]).reshape(2, -1).T
    differing = int(np.not_equal(output, expected).sum())
    return Check(
        f"3 profiles on a wrapped 4×5 grid: {differing} of {expected.size} outputs differ",
        differing == 0,
    )


def _renormalised() -> Check:
    """At the border of an unpadded image the softmax renormalises, so the rows are not translates."""
    tokens = PLANE.keys[:6]
    rows = equations.softmax(-((tokens[None] - tokens[:, None]) ** 2).sum(axis=2).astype(float))
    inside = float(rows[1, 1])
    border = float(rows[0, 0])
    return Check(
        f"a Gaussian of 6 pixels peaks at {inside:.2f} inside and {border:.2f} at the border",
        border > inside + 0.1,
    )


@claim(
    "mixture",
    "Heads of several profiles express a mixture of convolutions, which is one (on an unbounded or wrapped grid).",
    "Expresses “mixture of convolutions” if there were multiple distribution profiles",
    LEARN,
)
def mixture() -> Judgement:
    """The same sum holds for profiles that differ."""
    return proved(by_steps(ONE_SUM, _profile_steps, "d ≤ 3"))


@claim(
    "gaussians",
    "Gaussian heads of one width, or of several, make one convolution (on an unbounded or wrapped grid).",
    "a single convolution is expressed if they have the same width and different centers.",
    f"{LEARN}, Quadratic encoding",
)
def gaussians() -> Judgement:
    """Their scores depend on k − q alone, for any real centre and any α, so each has a profile."""
    what = "a Gaussian head attends by k − q alone, so these heads make one convolution"
    return proved(by_steps(what, _gaussian_head_steps, "d ≤ 3"))


def _gaussian_head_steps() -> list[ProofStep]:
    normaliser = "on an unbounded or wrapped grid Σ_k e^score runs over all k − q for every q, so it does not depend on q"
    return [*unmoved_steps(reals), argued(normaliser, sympy.Symbol("Z")), *_profile_steps()]
