"""Claims about scores and positional encodings: dimension, the four terms, relative or absolute
positions.
"""

from collections.abc import Callable
from typing import Any

import sympy

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
from verify.theory.literature.torch_layers import attention_for, small_convolution
from verify.theory.symbolic import lemmas, proof_positions, proofs_relative
from verify.theory.symbolic.proof import ProofStep, identity
from verify.theory.symbolic.proofs_scores import integers

RELATIVE = "blog, Relative Positional Encoding"


@claim(
    "three-sufficient",
    "In two dimensions a relative encoding of three components is enough to attend to any shift, as α → ∞.",
    "there exists a set of relative positional vectors of dimension $$D_{\\textit{pos}} = 3$$ along with self-attention "
    "parameters that allow attending to pixels at arbitrary shift",
    RELATIVE,
)
def three_sufficient() -> Judgement:
    """Proved in Coq with D_p = d + 1; and the layer with the code's encoding is certified."""
    conv = small_convolution((2, 2), (3, 3), padding=1)
    layer = attention_for(conv)
    coded = proof_positions.code_length(2)
    stored = layer.w_key_pos.shape[2]
    return proved(
        by_coq("score_gap", "softmax_limit"),
        Check(f"D_p is {coded} in the encoding and {stored} in the layer", coded == stored == 3),
        certified(conv, layer, (6, 5), "the layer of D_p = 3"),
    )


@claim(
    "relative-sufficient",
    "With the right relative encoding a layer is a convolution: with a head more exactly, on T tokens; else as α → ∞.",
    "with the right choice of relative positional encoding … *a MHSA layer is exactly equivalent to a convolutional layer*",
    "talk, Lemma 1: Summary",
)
def relative_sufficient() -> Judgement:
    """Heads of score s at q + τ_h and 0 elsewhere, as r_δ a unit vector for each tap allows, less a
    uniform head; on T tokens.
    """
    return proved(
        by_steps(
            "on T tokens, r_δ a unit vector for each tap (D_p = K²), W_h = Z W_τ/(e^s − 1) and −(T/Z) Σ_h W_h for a uniform "
            "head give Eq. 8 at every finite s",
            _exact_steps,
        ),
        by_coq("theorem1"),
        reads_the_same(PLANE),
    )


def _exact_steps() -> list[ProofStep]:
    """Z P^h − T P^0 is e^s − 1 at q + τ_h and 0 elsewhere, at every finite s."""
    tokens, lead = sympy.symbols("T s", positive=True)
    total = sympy.exp(lead) + tokens - 1
    uniform = tokens / total * (1 / tokens)
    return [
        identity(
            "P^h = (e^s − 1)/Z + (T/Z) P^0 at q + τ_h, and (T/Z) P^0 elsewhere, for Z = e^s + T − 1 and P^0 = 1/T",
            (sympy.exp(lead) / total, (sympy.exp(lead) - 1) / total + uniform),
            (1 / total, uniform),
        )
    ]


def unmoved_steps(numbers: Callable[[str, int], Any] = integers) -> list[ProofStep]:
    """Scores do not change when query and key both move by s, in one, two and three dimensions."""
    return [
        identity("score(k + s − (q + s)) = score(k − q)", *proofs_relative.moved_together(numbers))
    ]


@claim(
    "last-term",
    "Of the four terms of the score with absolute positions the last, of positions alone, is enough, as α → ∞.",
    "only the last term is needed for the self-attention to emulate a CNN.",
    RELATIVE,
)
def last_term() -> Judgement:
    """Proved in Coq: with P_p = (p, ‖p‖², 1), P_q W_qry W_keyᵀ P_kᵀ gives the very attention of
    Lemma 2.

    The code's features are checked by sympy.
    """
    return proved(
        by_coq("absolute_attention", "theorem1_limit"),
        by_proof(lambda: lemmas.prove_absolute_encoding(2)),
    )


@claim(
    "scores-and-shift",
    "With a relative encoding the scores depend on the shift alone, and the layer is translation equivariant.",
    "the attention scores only depend on the shift and we achieve translation equivariance.",
    RELATIVE,
)
def scores_and_shift() -> Judgement:
    """Three of the four terms depend on the content."""
    q = integers("q", 2)
    k = integers("k", 2)
    terms = proofs_relative.eq_6(q, k, proofs_relative.image_token).args
    tokens = {proofs_relative.image_token(q), proofs_relative.image_token(k)}
    by_content = sum(bool(term.atoms(sympy.MatrixSymbol) & tokens) for term in terms)
    return refuted(
        Check(
            f"the pixels are in {by_content} of the {len(terms)} terms of Eq. 6",
            (by_content, len(terms)) == (3, 4),
        ),
        stands="the scores depend on positions through the shift alone, the last term on nothing else, and the layer is "
        "translation equivariant (translation-equivariance)",
        statement="v·r_δ depends on the shift alone",
        instead=proved(
            by_steps("the score does not change when query and key move together", unmoved_steps)
        ),
    )


less_restrictive = open_claim(
    "less-restrictive",
    "A relative encoding is less restrictive than an absolute one.",
    "Relative positional encoding* is less restrictive",
    "talk, Self-Attention",
    "the talk does not say in which sense; for convolution either will do (last-term)",
)
