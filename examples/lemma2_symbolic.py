# %% [markdown]
"""Lemma 2, proved by sympy on the very encoding that the layer runs: attention becomes one-hot as α
grows.

The score is $v·r_δ = −α(‖δ − τ‖² − ‖τ‖²)$; its only maximum is at $δ = τ$, and every other integer
shift scores lower by $α‖δ − τ‖² ≥ α$.
"""

# %%
import verify

# %%
proofs = [verify.prove_lemma2(dims) for dims in (1, 2, 3)]
for proof in proofs:
    print(proof, end="\n\n")

# %%
assert all(proof.argued == 0 for proof in proofs), (
    "every step is discharged by sympy or a theorem in Coq, none is argued"
)
