"""Proof steps of Theorem 1 after Lemma 2: the limits of the code's attention, and Lemma 1 for them."""

import sympy

from verify.theory.symbolic.proof import Proof, ProofStep, cited, identity, limits
from verify.theory.symbolic.proofs_lemma1 import (
    CHANNELS,
    attention,
    cases,
    convolution,
    one_hot,
    place_steps,
)
from verify.theory.symbolic.proofs_scores import alpha, minus, score, weights


def theorem_steps(dims: int) -> list[ProofStep | Proof]:
    """With sympy's limits as P^h the layer equals the convolution; the rate by Coq."""
    case = cases(dims)[0]
    soft = [
        [weights([score(minus(key, query), shift) for key in case.keys]) for query in case.queries]
        for shift in case.shifts
    ]
    hot = [entry for shift in case.shifts for entry in one_hot(case, shift).flat()]
    expected = list(
        zip((weight for head in soft for row in head for weight in row), hot, strict=True)
    )
    limit_step = limits(
        f"{case.sides}: {len(expected)} weights of the code tend to one-hot", expected, alpha
    )
    value = {line.lhs.args[0]: line.rhs for line in limit_step.expressions}
    tends_to = [sympy.Matrix([[value[w] for w in row] for row in head]) for head in soft]
    eye = sympy.eye(CHANNELS[1])
    w = case.w
    layer = attention(case, tends_to, w, [eye] * len(w))
    return [
        Proof(
            "so for all grids head j reads X at s·o + dil·j, and the sum is the convolution",
            tuple(place_steps()),
            name="Lemma 1",
        ),
        limit_step,
        identity(
            "on this grid, with these limits, MHSA(X) = Conv(X), each entry, for all X and W",
            *zip(layer.flat(), convolution(case, w).flat(), strict=True),
        ),
        cited("for all |X| ≤ M and α heads that leak ε err by ≤ 2εMΣ|W|", "theorem1_finite"),
        cited("so one α is enough for all grids, for an error > 0", "theorem1_uniform"),
    ]
