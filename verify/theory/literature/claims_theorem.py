"""Claims about Theorem 1, both lemmas, kernel shapes, padding, stride and dilation."""

from itertools import product
from typing import Any

import numpy as np
import sympy

from verify.theory.literature import equations
from verify.theory.literature.judgement import (
    NOT_AT_HAND,
    Check,
    Judgement,
    by_coq,
    by_proof,
    by_steps,
    claim,
    proved,
    refuted,
)
from verify.theory.literature.shared_checks import PLANE, certified, compares, every_query, reads_the_same
from verify.theory.literature.torch_layers import attention_for, small_convolution
from verify.theory.symbolic import lemmas, proof_positions
from verify.theory.symbolic.proof import ProofStep, identity
from verify.theory.symbolic.proof_algebra import linear
from verify.theory.symbolic.proof_positions import Setting, Vector
from verify.theory.symbolic.proofs_scores import indexed, integers, minus, plus, symbols

IMAGE = Setting((3, 3), (5, 6), (1, 1))


@claim(
    "theorem-limit",
    "As α → ∞, K² heads with the quadratic relative encoding compute any K×K convolution of a padded image.",
    r"Although the proof requires $\alpha \rightarrow \infty$ to satisfy the assumption (9) of Lemma 1",
    "talk, Lemma 2: Summary",
)
def theorem_limit() -> Judgement:
    """Proved in Coq; the code's encoding by sympy; and compared exactly with the oracle on grids."""
    return proved(
        by_coq("theorem1_limit"),
        by_proof(lambda: lemmas.prove_theorem(2)),
        reads_the_same(Setting((3, 3), (3, 4), (1, 1))),
        reads_the_same(Setting((5, 5), (4, 4), (2, 2))),
    )


@claim(
    "lemma-1",
    "One-hot heads, a bijection onto the shifts: for any kernel some W_val and W_out give the convolution (D_h ≥ D_out).",
    r"there exists $\{\mathbf{W}_{val}^{(h)}\}_{h \in [N_h]}$ such that $\text{MHSA}(\mathbf{X}) = "
    r"\text{Conv}(\mathbf{X})$, for any kernel tensor",
    "talk, Lemma 1",
)
def lemma_1() -> Judgement:
    """Proved symbolically; and three bijections are checked on random integers, with the attention as hypothesis."""
    setting, differing = Setting((3, 3), (5, 4), (1, 1)), 0
    weight, bias, x = equations.integers(1, 3, 2, 3, 3), equations.integers(2, 3), equations.integers(3, 2, 5, 4)
    taps = equations.tap_matrices(weight)
    expected = setting.convolution(weight, bias)(x[None]).reshape(3, -1).T
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(9)
        heads = equations.given_heads(setting, [setting.shifts[j] for j in order])
        output = equations.mix(heads, setting.tokens(x), [taps[j] for j in order], bias)
        differing += int(np.not_equal(output, expected).sum())
    return proved(
        by_proof(lambda: lemmas.prove_lemma1(2)),
        reads_the_same(setting, heads=equations.given_heads(setting, setting.shifts)),
        Check(f"3 bijections on random integers: {differing} of {3 * expected.size} outputs differ", differing == 0),
    )


@claim(
    "lemma-2",
    "As α → ∞ the softmax tends to 1 on the key at q + τ and to 0 on all others, wherever q + τ is a pixel.",
    r"so that the maximum score $-\alpha c$ is achieved when $\delta = \tau$, then",
    "talk, Lemma 2",
)
def lemma_2() -> Judgement:
    """Proved in Coq; the code's encoding by sympy for any d; and the exact limit on a grid, for every shift that stays on it."""
    setting = Setting((1, 1), (4, 4))
    keys, wrong, count = setting.keys, 0, 0
    for target in keys:
        for query in keys:
            limit = equations.sharp(proof_positions.quadratic_scores(query[None], keys, tuple(target - query)))
            wrong += int((limit[0] != (keys == target).all(axis=1)).sum())
            count += len(keys)
    return proved(
        by_coq("score_gap", "softmax_limit"),
        by_proof(lemmas.prove_lemma2_any_length),
        Check(f"{wrong} of {count} limits on a 4×4 grid are not one-hot at query + τ", wrong == 0),
    )


@claim(
    "lemma-2-border",
    "On the image as it is, every head picks out the one pixel at its shift, for every query.",
    r"each of the softmax weights pick out a single pixel $k = q - f(h)$:",
    "talk, Lemma 1",
)
def lemma_2_border() -> Judgement:
    """Next to the border that pixel does not exist, yet the weights still sum to 1."""
    on_grid = {tuple(key) for key in proof_positions.positions(IMAGE.size)}
    pairs = list(product(on_grid, IMAGE.shifts))
    missing = sum(tuple(q + t for q, t in zip(query, tau, strict=True)) not in on_grid for query, tau in pairs)
    return refuted(
        Check(f"on a 5×6 image {missing} of {len(pairs)} pairs of query and shift of a 3×3 kernel have no pixel there",
              missing > 0),
        by_steps("where assumption (9) would have all weights 0, but the weights of a softmax add up to 1", _sum_steps),
        stands="it holds in the limit wherever q + τ is a pixel, so for every output on an image that was padded first",
        statement="on the padded grid every output's query has a token at every shift",
        instead=proved(by_coq("conv_targets"), reads_the_same(IMAGE)),
    )  # fmt: skip


def _sum_steps() -> list[ProofStep]:
    weights = [sympy.exp(s) for s in symbols("s", 3, real=True)]
    total: Any = sympy.Add(*weights)
    return [identity("the weights of a softmax add up to 1", (sympy.Add(*(w / total for w in weights)), sympy.S.One))]


@claim(
    "any-dimension",
    "The construction works in any number d of dimensions, with D_p = d + 1.",
    "can be extended in a straightforward manner to cover $K$-dimensional convolutions, with $D_p = K + 1$.",
    "talk, Lemma 2: Summary",
)
def any_dimension() -> Judgement:
    """Proved in Coq; the code's encoding by sympy for vectors of any length; and the oracle agrees in one to four dimensions."""
    settings = (
        Setting((3,), (5,), (1,)),
        Setting((3, 2), (3, 4), (1, 0)),
        Setting((2, 3, 2), (3, 3, 2), (0, 1, 1)),
        Setting((2, 2, 3, 2), (3, 2, 3, 2), (0, 0, 1, 1)),
    )
    lengths = [proof_positions.code_length(setting.dims) for setting in settings]
    return proved(
        by_coq("theorem1"),
        by_proof(lemmas.prove_lemma2_any_length),
        Check(f"D_p is {lengths} for d = 1, 2, 3, 4", lengths == [2, 3, 4, 5]),
        *map(reads_the_same, settings),
    )


@claim(
    "one-dimension",
    "For text (d = 1) an encoding of two components is enough; the blog leaves it to be verified.",
    "it seems that using learned relative positional encoding of dimension 2 should be enough but we need to verify this",
    "blog, last paragraph but two",
)
def one_dimension() -> Judgement:
    """The theorem with d = 1; the layer with five heads and D_p = 2 is certified."""
    conv = small_convolution((3, 2), (5,), padding=2)
    layer = attention_for(conv)
    heads, pos_dim = layer.heads, layer.w_key_pos.shape[2]
    return proved(
        by_coq("theorem1"),
        by_proof(lambda: lemmas.prove_theorem(1)),
        Check(f"D_p = {pos_dim}, {heads} heads", (heads, pos_dim) == (5, 2)),
        reads_the_same(Setting((5,), (7,), (2,))),
        certified(conv, layer, (12,), "width 5"),
    )


@claim(
    "even-kernel",
    "The set {−⌊K/2⌋, …, ⌊K/2⌋}² holds the shifts of a K×K kernel, K² of them.",
    r"is the set of all shifts represented by a $K \times K$ kernel.",
    "talk, Self-Attention for Images, Convolution",
)
def even_kernel() -> Judgement:
    """For even K the printed set has (K + 1)² shifts."""
    counts = {k: len(printed_shifts(k)) for k in (2, 3, 4, 5)}
    wrong = [k for k, count in counts.items() if count != k**2]
    sizes = ", ".join(f"{count} for K = {k}" for k, count in counts.items())
    sets = {k: len(set(Setting((k, k), (k, k)).shifts)) for k in counts}
    odd = [k for k in (3, 5) if printed_shifts(k) == set(Setting((k, k), (k, k)).shifts)]
    return refuted(
        Check(f"the printed set has {sizes}; K² fails for K = {wrong}", wrong == [2, 4]),
        stands="it holds for odd K, which the talk may have in mind but does not say",
        statement="{−⌊(K−1)/2⌋, …, ⌊K/2⌋}^d: the same set for odd K, and K^d shifts for every K",
        instead=proved(
            by_coq("conv_shifts", "paper_shifts"),
            Check(f"its size is {sets}", all(count == k**2 for k, count in sets.items())),
            Check(f"the same set for K = {odd}", odd == [3, 5]),
            *(reads_the_same(Setting((k, k), (5, 5))) for k in (2, 4)),
        ),
    )


def printed_shifts(k: int) -> set[Vector]:
    """Δ_K in two dimensions, as printed."""
    return set(product(range(-(k // 2), k // 2 + 1), repeat=2))


@claim(
    "flipped-kernel",
    "Writing the convolution with X_{i−δ}, its kernel flipped, changes nothing in the theorem.",
    "Does not affect the outcome of the theorem.",
    "talk, Self-Attention for Images, Convolution",
)
def flipped_kernel() -> Judgement:
    """The sum is over a symmetric set; and heads at q − k = τ, as in the talk's Lemma 1, are compared with k − q = τ."""
    queries, keys = IMAGE.queries, IMAGE.keys
    behind = [
        (queries[:, None] - keys[None] == np.array(tau, dtype=object)).all(axis=2).astype(int) for tau in IMAGE.shifts
    ]
    opposite = equations.hard_heads(IMAGE, [tuple(-x for x in tau) for tau in IMAGE.shifts])
    turned = sum(bool((a == b).all()) for a, b in zip(behind, opposite, strict=True))
    weight = equations.integers(1, 2, 2, 3, 3)
    return proved(
        by_steps("Σ_τ X_{q−τ} W_τ = Σ_τ X_{q+τ} W_{−τ} over −r, …, r on every axis", _flipping_steps, "d ≤ 3"),
        Check(f"the heads at q − k = τ are those at k − q = −τ: {turned} of 9", turned == 9),
        compares(IMAGE, behind, equations.tap_matrices(weight), weight[:, :, ::-1, ::-1], "with the kernel flipped"),
    )  # fmt: skip


def _flipping_steps() -> list[ProofStep]:
    r = sympy.Symbol("r", integer=True, nonnegative=True)
    x, w = indexed("X"), indexed("W")
    sums = []
    for dims in (1, 2, 3):
        q, tau = integers("q", dims), integers("tau", dims)
        box = [(t, -r, r) for t in tau]
        back: Any = sympy.Sum(x[minus(q, tau)] * w[tau], *box)
        for t in tau:
            back = back.change_index(t, -t)
        sums.append((back, sympy.Sum(x[plus(q, tau)] * w[tuple(-t for t in tau)], *box)))
    return [linear("with −τ for τ, which the set allows", *sums)]


@claim(
    "sparse",
    "Leaving pixels out of Δ_K gives the sparse convolution without these taps.",
    r"Expresses “sparse convolution” if we remove some pixels from being attended to in $\Delta_K$",
    "talk, Do Self-Attention Layers Actually Learn Convolutions?",
)
def sparse() -> Judgement:
    """Theorem 1 holds for any finite set of shifts; here four of the nine of a 3×3 kernel."""
    weight = equations.integers(1, 3, 2, 3, 3)
    kept = [1, 3, 4, 8]
    weight.reshape(3, 2, 9)[:, :, [j for j in range(9) if j not in kept]] = 0
    heads, taps = equations.hard_heads(PLANE), equations.tap_matrices(weight)
    four = compares(PLANE, [heads[j] for j in kept], [taps[j] for j in kept], weight, "4 of 9 heads, 5 taps zero")
    return proved(by_coq("theorem1"), four)


@claim(
    "pad-and-crop",
    "Pad the image with ⌊K/2⌋ zeros on each side, attend, crop: that is the zero-padded convolution.",
    "",
    NOT_AT_HAND,
)
def pad_and_crop() -> Judgement:
    """Proved in Coq; and checked for K = 3 and 5 with every token a query and the border outputs cropped."""
    checks = []
    for k in (3, 5):
        p = k // 2
        setting = Setting((k, k), (4, 5), (p, p))
        kept = np.zeros(setting.padded, dtype=bool)
        kept[p:-p, p:-p] = True
        heads = [head[kept.reshape(-1)] for head in every_query(setting.padded, setting.shifts)]
        checks.append(reads_the_same(setting, heads=heads))
    conv = small_convolution((2, 3), (3, 3), padding=1)
    return proved(
        by_coq("geometry_theorem1"),
        *checks,
        certified(conv, attention_for(conv), (5, 6), "the layer on its padded grid"),
    )


@claim(
    "stride",
    "A strided convolution is the layer of stride 1 followed by a fixed choice of every s-th output.",
    "",
    NOT_AT_HAND,
)
def stride() -> Judgement:
    """Proved in Coq; and every s-th row of the attention is compared with the oracle of that stride."""
    checks = []
    for step in (2, 3):
        plain = Setting((3, 3), (7, 6), (1, 1))
        picked = np.zeros(plain.outputs, dtype=bool)
        picked[::step, ::step] = True
        heads = [head[picked.reshape(-1)] for head in equations.hard_heads(plain)]
        checks.append(reads_the_same(Setting((3, 3), (7, 6), (1, 1), (step, step)), heads=heads))
    conv = small_convolution((2, 3), (3, 3), padding=1, stride=2)
    return proved(by_coq("geometry_theorem1"), *checks, certified(conv, attention_for(conv), (7, 6), "stride 2"))


@claim("dilation", "A dilated convolution needs no more heads: the shifts are stretched.", "", NOT_AT_HAND)
def dilation() -> Judgement:
    """Proved in Coq; and K² heads at dil·δ are compared with the oracle."""
    conv = small_convolution((2, 3), (3, 3), padding=2, dilation=2)
    layer = attention_for(conv)
    return proved(
        by_coq("geometry_theorem1"),
        reads_the_same(Setting((3, 3), (7, 6), (2, 1), None, (2, 1))),
        reads_the_same(Setting((2, 3), (6, 9), None, None, (3, 4))),
        Check(f"{layer.heads} heads", layer.heads == 9),
        certified(conv, layer, (7, 6), "dilation 2"),
    )


@claim(
    "slip-quantifiers",
    "One choice of W_val serves every kernel, as the words of Lemma 1 stand.",
    r"for any kernel tensor $\mathbf{W} \in \mathbb{R}^{K \times K \times D_{in} \times D_{out}}$",
    "talk, Lemma 1",
)
def slip_quantifiers() -> Judgement:
    """One layer cannot equal two different convolutions."""
    heads, weight = equations.hard_heads(PLANE), equations.integers(1, 2, 2, 3, 3)
    taps = equations.tap_matrices(weight)
    same, other = (
        compares(PLANE, heads, taps, kernel, name) for kernel, name in ((weight, "its own"), (2 * weight, "twice"))
    )
    return refuted(
        Check(f"one layer beside the convolution of its kernel and of twice its kernel: {same}; {other.finding}",
              same.holds and not other.holds),
        stands="for any kernel there are such W_val: the words stand in another order than they are meant",
    )  # fmt: skip
