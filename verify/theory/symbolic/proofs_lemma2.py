"""Proof steps of Lemma 2: a quadratic score, and a unique maximum with gap α.

What follows from the gap is cited from Coq.
"""

from verify.theory.symbolic.proof import (
    Proof,
    ProofStep,
    cited,
    identity,
)
from verify.theory.symbolic.proofs_scores import (
    alpha,
    integers,
    minus,
    norm2,
    plus,
    score,
)


def score_steps(dims: int) -> list[ProofStep]:
    """Lemma 2, first part: the score is the quadratic −α(‖δ−τ‖² − ‖τ‖²)."""
    delta = integers("delta", dims)
    tau = integers("tau", dims)
    quadratic = -alpha * (norm2(minus(delta, tau)) - norm2(tau))
    return [identity("v·r_δ = −α(‖δ − τ‖² − ‖τ‖²) for all δ and τ", (score(delta, tau), quadratic))]


def gap_steps(dims: int) -> list[ProofStep | Proof]:
    """Lemma 2, second part: δ = τ is the only maximum among integer shifts, with a gap of exactly
    α; so the softmax tends to one-hot.
    """
    delta = integers("delta", dims)
    tau = integers("tau", dims)
    units = [
        tuple(sign * int(i == j) for j in range(dims)) for i in range(dims) for sign in (1, -1)
    ]
    at_target = score(tau, tau)
    return [
        identity(
            "score(τ) − score(δ) = α‖n‖² for all δ and τ, with n = δ − τ",
            (at_target - score(delta, tau), alpha * norm2(minus(delta, tau))),
        ),
        identity(
            "the gap is α at each unit vector n",
            *((at_target - score(plus(tau, unit), tau), alpha) for unit in units),
        ),
        cited("and for all other n ≠ 0 at least α", "score_gap"),
        cited(
            "so for all grids the weights tend to 1 at the target, to 0 elsewhere", "softmax_limit"
        ),
    ]
