"""Claims on positional encodings: their dimension, relative or absolute, the key dimension, and the set of shifts."""

from fractions import Fraction

import numpy as np
import torch

from verify.theory.literature import equations
from verify.theory.literature.claims_theorem import certified, reads_the_same
from verify.theory.literature.equations import Setting, Vector
from verify.theory.literature.judgement import (
    Check,
    Correction,
    Judgement,
    by_proof,
    by_steps,
    claim,
    corrected,
    proved,
    refuted,
)
from verify.theory.literature.torch_layers import attention_for, random_layer, small_convolution
from verify.theory.symbolic import lemmas, proof_positions, proofs_lemma2
from verify.theory.symbolic.proof import ProofStep, identity
from verify.theory.symbolic.proofs_scores import integers, minus, plus, score

PLANE, SPACE = Setting((3, 3), (4, 5), (1, 1)), Setting((2, 3, 2), (3, 3, 3), (0, 1, 0))


@claim("three-sufficient", "paper, Theorem 1", "In two dimensions a relative encoding of three components is enough.")
def three_sufficient() -> Judgement:
    """The quadratic encoding has three, and the layer with it is certified."""
    conv = small_convolution((2, 2), (3, 3), padding=1)
    layer = attention_for(conv)
    coded, stored = proof_positions.code_length(2), layer.w_key_pos.shape[2]
    return proved(
        by_steps(
            "score and gap of the code's encoding, for every integer δ and τ",
            lambda: [*proofs_lemma2.score_steps(2), *proofs_lemma2.gap_steps(2)],
        ),
        Check(f"D_p is {coded} in the encoding and {stored} in the layer", coded == stored == 3),
        reads_the_same(PLANE),
        certified(conv, layer, (6, 5), "the layer of D_p = 3"),
    )


@claim(
    "three-necessary",
    "paper, Theorem 1, its condition D_p ≥ 3 read as a need",
    "In two dimensions the encoding needs at least three components.",
)
def three_necessary() -> Judgement:
    """Two components are enough in any dimension (shifts are numbered); one is not, unless heads spread their attention."""
    conv = small_convolution((2, 2), (3, 3), padding=1)
    layer = attention_for(conv, radix=proof_positions.radix_for((8, 8)))
    return refuted(
        Check(f"a layer with D_p = {layer.w_key_pos.shape[2]}", layer.w_key_pos.shape[2] == 2),
        certified(conv, layer, (6, 5), "it computes a 3×3 convolution"),
        _parabola_reads_the_same(PLANE),
        instead=_two_is_enough(),
    )


def _parabola_reads_the_same(setting: Setting) -> Check:
    radix = proof_positions.radix_for(setting.padded)
    scores = [proof_positions.parabola_scores(setting.queries, setting.keys, tau, radix) for tau in setting.shifts]
    check = reads_the_same(setting, heads=[equations.sharp(score) for score in scores])
    return Check(f"D_p = 2: {check.finding}", check.holds)


def _two_is_enough() -> Correction:
    return corrected(
        """two components are enough in every dimension, and the least for heads that each attend one key; heads that spread their
        attention over the kernel do with one""",
        by_proof(lambda: lemmas.prove_parabola(2)),
        _parabola_reads_the_same(SPACE),
        by_proof(lemmas.prove_one_is_not_enough),
        *_one_component_spread(),
    )


def _one_component_spread() -> list[Check]:
    """D_p = 1: r is the tap's number on the kernel and −β elsewhere; head h has v_h = ln x_h > 0.

    So for β → ∞ it gives tap j the weight x_h^j/Σ_i x_h^i and all else nothing: a Vandermonde matrix, for which every kernel's taps
    can be solved.
    """
    nine, three = (_spread_weights(taps) for taps in (9, 3))
    line = Setting((3,), (6,), (1,))
    hits = equations.given_heads(line, line.shifts)
    heads = [sum((share * hit for share, hit in zip(row, hits, strict=True)), start=0 * hits[0]) for row in three]
    weight, x = equations.integers(5, 2, 2, 3), equations.integers(6, 2, 6)
    taps = np.array(equations.tap_matrices(weight)).reshape(3, -1)
    values = equations.solve(three.T, taps).reshape(3, 2, 2)
    wanted = line.convolution(weight)(x[None]).reshape(2, -1).T
    differing = int(np.not_equal(equations.mix(heads, line.tokens(x), list(values)), wanted).sum())
    r = np.where(sum(hits) == 1, sum(number * hit for number, hit in enumerate(hits)), -2000.0)
    soft = [equations.softmax(np.log(2.0 + head) * r) for head in range(3)]
    error = np.abs(equations.mix(soft, line.tokens(x).astype(float), list(values.astype(float))) - wanted.astype(float))
    return [
        Check(
            f"D_p = 1 with spread heads: the limits of their weights, 9 heads on 9 taps, have rank {equations.rank(nine)}",
            equations.rank(nine) == 9,
        ),
        Check(
            f"with 3 heads, {differing} of {wanted.size} outputs differ from an integer convolution of 3 taps, in fractions; "
            f"the softmax in float64 is within {error.max():.0e}",
            differing == 0 and error.max() < 1e-9,
        ),
    ]


def _spread_weights(taps: int) -> np.ndarray:
    """x_h^j/Σ_i x_h^i for x_h = 2, 3, 4, …: exact fractions (heads, taps)."""
    nodes = [Fraction(2 + head) for head in range(taps)]
    return np.array([[x**j / sum(x**i for i in range(taps)) for j in range(taps)] for x in nodes], dtype=object)


@claim(
    "relative-sufficient",
    "paper, Section 3; talk",
    "An encoding of the relative position alone, k − q, is enough to express convolution.",
)
def relative_sufficient() -> Judgement:
    """The scores depend on δ alone, and the heads reach every tap."""
    keys = PLANE.keys
    by_shift: dict[Vector, set[int]] = {}
    scores = proof_positions.quadratic_scores(keys, keys, (1, -1))
    for q, row in zip(keys, scores, strict=True):
        for k, value in zip(keys, row, strict=True):
            by_shift.setdefault(tuple(k - q), set()).add(value)
    several = sum(len(values) > 1 for values in by_shift.values())
    return proved(
        by_steps("the score does not change when query and key move together", unmoved_steps),
        Check(f"{several} of {len(by_shift)} relative positions have more than one score", several == 0),
        reads_the_same(PLANE),
    )


def unmoved_steps() -> list[ProofStep]:
    """Query and key both moved by s, in one, two and three dimensions."""
    pairs = []
    for dims in (1, 2, 3):
        tau, q, k, s = (integers(name, dims) for name in ("tau", "q", "k", "s"))
        pairs.append((score(minus(plus(k, s), plus(q, s)), tau), score(minus(k, q), tau)))
    return [identity("score(k + s − (q + s)) = score(k − q)", *pairs)]


@claim(
    "relative-necessary",
    "talk, the relative encoding read as a need",
    "Convolution needs a relative encoding; absolute positions will not do.",
)
def relative_necessary() -> Judgement:
    """d + 1 features of query and key, multiplied by torch's stock attention."""
    queries, keys, shifts = PLANE.queries, PLANE.keys, PLANE.shifts
    scores = [proof_positions.absolute_scores(queries, keys, tau) for tau in shifts]
    features = proof_positions.absolute_features(queries, keys, shifts[0])[0].shape[1]
    check = reads_the_same(PLANE, heads=[equations.sharp(score) for score in scores])
    return refuted(
        Check(f"absolute positions, {features} features: {check.finding}", check.holds and features == 3),
        _stock_attention(),
        instead=corrected(
            "either will do: an absolute encoding of d + 1 features gives the very softmax of Lemma 2",
            by_proof(lambda: lemmas.prove_absolute_encoding(2)),
        ),
    )


def _stock_attention() -> Check:
    """``scaled_dot_product_attention`` on the features without a score bias, on integers, so exactly."""
    weight, x = equations.integers(1, 3, 2, 3, 3), equations.integers(2, 2, 4, 5)
    tokens = torch.tensor(PLANE.tokens(x).astype(np.float32))
    total = torch.zeros(len(PLANE.queries), 3)
    for tau, tap in zip(PLANE.shifts, equations.tap_matrices(weight), strict=True):
        pair = proof_positions.absolute_features(PLANE.queries, PLANE.keys, tau, alpha=1024)
        query, key = (torch.tensor(side.astype(np.float32)) for side in pair)
        attended = torch.nn.functional.scaled_dot_product_attention(query[None], key[None], tokens[None], scale=1.0)
        total += attended[0] @ torch.tensor(tap.astype(np.float32))
    wanted = PLANE.convolution(weight)(x[None]).reshape(3, -1).T.astype(np.float32)
    error = float((total - torch.tensor(wanted)).abs().max())
    return Check(
        f"torch's scaled_dot_product_attention on them differs from an integer convolution by {error:g}", error == 0
    )


@claim(
    "key-width",
    "paper, Lemma 2, its condition D_p ≤ D_k read as a need",
    "The keys must be at least as wide as the positional encoding.",
)
def key_width() -> Judgement:
    """D_k = 1 is enough: the head's vector moves into its key matrix."""
    conv = small_convolution((2, 2), (3, 3), padding=1)
    layer = attention_for(conv, key_dim=1)
    key_dim, pos_dim = layer.w_key_pos.shape[1:]
    computes = certified(conv, layer, (6, 5), "it computes a 3×3 convolution")
    directions = equations.rank([proof_positions.head_vector(tau, 1.0) for tau in PLANE.shifts])
    return refuted(
        Check(f"a layer with D_k = {key_dim} and D_p = {pos_dim}", (key_dim, pos_dim) == (1, 3)),
        computes,
        instead=corrected(
            """D_k = 1 is enough if every head has its own Ŵ_key; with one Ŵ_key for all heads the quadratic encoding needs
            D_k = D_p""",
            computes,
            Check(f"the vectors of the 9 heads span {directions} dimensions, D_p = {pos_dim}", directions == pos_dim),
        ),
    )


@claim(
    "even-kernel",
    "paper, the definition of Δ_K",
    "The set {−⌊K/2⌋, …, ⌊K/2⌋}^2 holds the shifts of a K×K kernel, K² of them.",
)
def even_kernel() -> Judgement:
    """For even K it has (K + 1)²."""
    counts = {k: len(printed_shifts(k, 2)) for k in (2, 3, 4, 5)}
    wrong = [k for k, count in counts.items() if count != k**2]
    sizes = ", ".join(f"{count} for K = {k}" for k, count in counts.items())
    lopsided = [Setting((k, k), (5, 5)) for k in (2, 4)]
    sets = {k: len(set(Setting((k, k), (k, k)).shifts)) for k in counts}
    odd = [k for k in (3, 5) if printed_shifts(k, 2) == set(Setting((k, k), (k, k)).shifts)]
    return refuted(
        Check(f"the printed set has {sizes}; K² fails for K = {wrong}", wrong == [2, 4]),
        instead=corrected(
            "{−⌊(K−1)/2⌋, …, ⌊K/2⌋}^d: the same set for odd K, and K^d shifts for every K",
            Check(f"its size is {sets}", all(count == k**2 for k, count in sets.items())),
            Check(f"the same set for K = {odd}", odd == [3, 5]),
            *map(reads_the_same, lopsided),
        ),
    )


def printed_shifts(k: int, dims: int) -> set[Vector]:
    """Δ_K as the paper prints it."""
    axis = np.arange(-(k // 2), k // 2 + 1)
    grid = np.stack(np.meshgrid(*[axis] * dims, indexing="ij"), axis=-1).reshape(len(axis) ** dims, dims)
    return {tuple(int(x) for x in row) for row in grid}


@claim(
    "four-terms",
    "paper, Eq. 4 to Eq. 6",
    """The score of absolute positions is a sum of four terms, and the relative score has the same four with relative positions and
    learned vectors put in place of absolute positions.""",
)
def four_terms() -> Judgement:
    """Symbolically; and the layer with all four terms against Eq. 6 written out."""
    layer, x = random_layer(), torch.randn(1, 2, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    attention = layer.attention_probabilities(x)[0].detach().numpy()
    wanted = np.array([equations.softmax(_relative_score(layer, x[0].T.numpy(), head)) for head in range(layer.heads)])
    error = float(np.abs(attention - wanted).max())
    content = float(np.abs(attention - layer.attention_probabilities(-x)[0].detach().numpy()).max())
    return proved(
        by_proof(lemmas.prove_relative_from_absolute),
        Check(f"the layer's attention is within {error:.0e} of Eq. 6 written out, all terms on", error < 1e-12),
        Check(f"and depends on the content: another input moves it by {content:.2g}", content > 0.01),
    )


def _relative_score(layer: torch.nn.Module, tokens: np.ndarray, head: int) -> np.ndarray:
    """Eq. 6 for the queries of a valid convolution of width 3 on a sequence of tokens (T, D_in): (Q, T)."""
    w_qry, w_key, w_pos, u, v = (
        getattr(layer, name)[head].detach().double().numpy() for name in ("w_qry", "w_key", "w_key_pos", "u", "v")
    )
    count = len(tokens)
    scores = np.zeros((count - 2, count))
    for q in range(1, count - 1):
        for k in range(count):
            r = np.array([float((k - q) ** 2), float(k - q)])
            query, key = tokens[q] @ w_qry, w_key.T @ tokens[k]
            scores[q - 1, k] = query @ key + query @ (w_pos @ r) + u @ key + v @ (w_pos @ r)
    return scores


CLAIMS = (
    three_sufficient,
    three_necessary,
    relative_sufficient,
    relative_necessary,
    key_width,
    even_kernel,
    four_terms,
)
