"""Claims about scores and positional encodings: dimension, the four terms, relative or absolute positions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import sympy
import torch

from verify.theory.literature import equations
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
from verify.theory.literature.shared_checks import PLANE, certified, reads_the_same
from verify.theory.literature.torch_layers import attention_for, random_layer, small_convolution
from verify.theory.symbolic import lemmas, proof_positions, proofs_relative
from verify.theory.symbolic.proof import ProofStep, identity
from verify.theory.symbolic.proof_positions import Vector
from verify.theory.symbolic.proofs_scores import integers, symbols

RELATIVE = "blog, Relative Positional Encoding"


@claim(
    "three-sufficient",
    "In two dimensions a relative encoding of three components is enough.",
    "there exists a set of relative positional vectors of dimension $$D_{\\textit{pos}} = 3$$ along with self-attention "
    "parameters that allow attending to pixels at arbitrary shift",
    RELATIVE,
)
def three_sufficient() -> Judgement:
    """Proved in Coq with D_p = d + 1; and the layer with the code's encoding is certified."""
    conv = small_convolution((2, 2), (3, 3), padding=1)
    layer = attention_for(conv)
    coded, stored = proof_positions.code_length(2), layer.w_key_pos.shape[2]
    return proved(
        by_coq("theorem1"),
        reads_the_same(PLANE),
        Check(f"D_p is {coded} in the encoding and {stored} in the layer", coded == stored == 3),
        certified(conv, layer, (6, 5), "the layer of D_p = 3"),
    )


@claim(
    "relative-sufficient",
    "With the right encoding of the relative position k − q, the layer is a convolution (as α → ∞).",
    "with the right choice of relative positional encoding … *a MHSA layer is exactly equivalent to a convolutional layer*",
    "talk, Lemma 1: Summary",
)
def relative_sufficient() -> Judgement:
    """Proved in Coq; the code's scores depend on δ alone, and the heads reach every tap."""
    return proved(
        by_coq("theorem1"),
        by_steps("the score does not change when query and key move together", unmoved_steps),
        one_score_a_shift(),
        reads_the_same(PLANE),
    )


def one_score_a_shift() -> Check:
    """On a padded image, a head's scores depend only on the shift from query to key."""
    keys = PLANE.keys
    by_shift: dict[Vector, set[int]] = {}
    scores = proof_positions.quadratic_scores(keys, keys, (1, -1))
    for q, row in zip(keys, scores, strict=True):
        for k, value in zip(keys, row, strict=True):
            by_shift.setdefault(tuple(k - q), set()).add(value)
    several = sum(len(values) > 1 for values in by_shift.values())
    return Check(f"{several} of {len(by_shift)} relative positions have more than one score", several == 0)


def unmoved_steps(numbers: Callable[[str, int], Any] = integers) -> list[ProofStep]:
    """Scores do not change when query and key both move by s, in one, two and three dimensions."""
    return [identity("score(k + s − (q + s)) = score(k − q)", *proofs_relative.moved_together(numbers))]


@claim(
    "last-term",
    "Of the four terms of the score the last one, v·r_δ, is enough.",
    "only the last term is needed for the self-attention to emulate a CNN.",
    RELATIVE,
)
def last_term() -> Judgement:
    """The Coq theorem's construction and the layer here have W_qry = W_key = 0 and u = 0."""
    layer = attention_for(small_convolution((2, 2), (3, 3), padding=1))
    others = [name for name in ("w_qry", "w_key", "u") if bool(getattr(layer, name).any())]
    return proved(
        by_coq("theorem1_limit"),
        by_steps("Eq. 6 without the other terms is Lemma 2's score", proofs_relative.construction_steps),
        Check(f"in the layer {3 - len(others)} of W_qry, W_key and u are 0", not others),
        reads_the_same(PLANE),
    )


@claim(
    "four-terms",
    "The score is a sum of four terms, the relative one with r_δ, u and v in place of absolute positions.",
    "instead considers the positional difference between the query and key tokens:",
    "talk, Self-Attention",
)
def four_terms() -> Judgement:
    """Proved symbolically; and the layer with all four terms is compared with Eq. 6 written out."""
    layer, x = random_layer(), torch.randn(1, 2, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    attention = layer.attention_probabilities(x)[0].detach().numpy()
    expected = np.array(
        [equations.softmax(_relative_score(layer, x[0].T.numpy(), head)) for head in range(layer.heads)]
    )
    error = float(np.abs(attention - expected).max())
    content = float(np.abs(attention - layer.attention_probabilities(-x)[0].detach().numpy()).max())
    return proved(
        by_proof(lemmas.prove_relative_from_absolute, "D_in = D_k = 2, D_p = 3"),
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


@claim(
    "scores-and-shift",
    "The scores of Eq. 6 depend on the shift alone.",
    "the attention scores only depend on the shift and we achieve translation equivariance.",
    RELATIVE,
)
def scores_and_shift() -> Judgement:
    """Three of the four terms depend on the content."""
    q, k = integers("q", 2), integers("k", 2)
    written = proofs_relative.eq_6(q, k, proofs_relative.image_token())
    pixels = sorted(str(x) for x in written.atoms(sympy.Indexed) if written.diff(x) != 0)
    return refuted(
        Check(f"Eq. 6 on symbols changes with {len(pixels)} of the 4 numbers of the two pixels", len(pixels) == 4),
        stands="the scores depend on positions through the shift alone, the last term on nothing else, and the layer is "
        "translation equivariant (translation-equivariance)",
        statement="v·r_δ depends on the shift alone",
        instead=proved(
            by_steps("the score does not change when query and key move together", unmoved_steps), one_score_a_shift()
        ),
    )


@claim(
    "slip-eq-5",
    "A_{q,k} = (X_q + P_q) W_qry W_keyᵀ (X_q + P_q)ᵀ.",
    r"(\mathbf{X}_{q,:} + \mathbf{P}_{q,:})^T",
    "talk, Self-Attention",
)
def slip_eq_5() -> Judgement:
    """The product as printed does not contain the key."""
    x_q, p_q, x_k, p_k = (sympy.Matrix([symbols(name, 2)]) for name in ("x", "p", "y", "s"))
    w = sympy.Matrix(2, 2, symbols("W", 4))
    printed, meant = (((x_q + p_q) * w * right.T)[0] for right in (x_q + p_q, x_k + p_k))
    keys = x_k.free_symbols | p_k.free_symbols
    counts = [len(expression.free_symbols & keys) for expression in (printed, meant)]
    return refuted(
        Check(f"the printed product holds {counts[0]} of the key's {len(keys)} symbols, the score {counts[1]}",
              counts == [0, 4]),
        stands="the expansion printed below it, which has k in the key's factor (four-terms)",
    )  # fmt: skip


@claim(
    "slip-eq-6",
    "The third term of the relative score is uᵀ W_key X_kᵀ.",
    r"\mathbf{u}^T \mathbf{W}_{key} \mathbf{X}_{k,:}^T",
    "talk, Self-Attention",
)
def slip_eq_6() -> Judgement:
    """W_key is D_in × D_k: the printed product is undefined unless the two are equal.

    Slips of the same kind: Ŵ_key transposed on one slide and not on another, X̂_key in Lemma 2, W for W_out below Eq. 10.
    """
    u, w_key, x = sympy.Matrix(symbols("u", 2)), sympy.Matrix(3, 2, symbols("K", 6)), sympy.Matrix(symbols("x", 3))
    fits = [u.shape[0] == matrix.shape[0] and matrix.shape[1] == x.shape[0] for matrix in (w_key, w_key.T)]
    return refuted(
        Check(
            f"D_in = 3, D_k = 2: the shapes fit with W_key: {fits[0]}, with W_keyᵀ: {fits[1]}", fits == [False, True]
        ),
        stands="the term with W_keyᵀ (four-terms)",
    )


less_restrictive = open_claim(
    "less-restrictive",
    "A relative encoding is less restrictive than an absolute one.",
    "Relative positional encoding* is less restrictive",
    "talk, Self-Attention",
    "the talk does not say in which sense; for convolution either will do (absolute-encoding)",
)
requirements = open_claim(
    "requirements",
    "Two requirements are the most crucial for a self-attention layer to express a convolution.",
    "The two most crucial requirements for a self-attention layer to express a convolution are:",
    "blog, Self-Attention & Convolutional Layers",
    "its two items are not at hand; on heads see multiple-heads, on positions absolute-encoding",
)
