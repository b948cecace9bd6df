"""One-hot heads: sums of shifted tokens, their adjoint, and the gradient of the weights.

A one-hot head copies one token to each query, so Eq. 3 reduces to three maps (x is zero outside of
the input):

    forward    y[o] = b + Σ_h x[s·o + e_h] W_h
    adjoint    x[t] = b + Σ_{h, o: s·o + e_h = t} y[o] W_hᵀ         (the gradient for x; a transposed layer)
    weights    W_h  = Σ_o x[s·o + e_h]ᵀ y[o]                        (the gradient for W)
"""
