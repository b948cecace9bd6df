# %% [markdown]
"""Lemma 2, shown by sympy on the very encoding that the layer runs: attention becomes one-hot as alpha grows."""

# %%
import verify

# %%
proofs = [verify.prove_lemma2(dims) for dims in (1, 2, 3)]
for proof in proofs:
    print(proof, end="\n\n")

# %%
assert all(proof.argued == 0 for proof in proofs), "every step is discharged by sympy, none is argued"
