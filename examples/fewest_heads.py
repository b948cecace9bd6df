# %% [markdown]
"""The least number of heads: any filter of one channel takes two."""

# %%
from math import exp

import torch

import construct
import verify

# %% [markdown] A filter of 7 × 7 pixels and one channel, with weights of both signs.  The theorem
# takes 49 heads, one a tap; two are enough, and one is not.

# %%
torch.manual_seed(0)
conv = torch.nn.Conv2d(1, 1, 7, padding=3, bias=False, dtype=torch.float64).requires_grad_(False)
count = verify.heads_needed(conv)
print(count)
assert count.relation is not None
weighted = {tap: f"{float(weight):.3f}" for tap, weight in enumerate(count.relation) if weight}
print(f"one is not, as a sum of taps with weights λ > 0 vanishes, exactly: λ = {weighted}")

# %% [markdown] Head $h$ pays the attention $P_{hτ}$ to the token at $q + τ$, by a table of scores: $\ln P_{hτ}$,
# and $−α$ at all other shifts.  Of $T$ tokens at most $T e^{−α}$ leaks; rounding takes some $T$ steps more.

# %%
x = torch.randn(1, 1, 12, 12, dtype=torch.float64)
tokens = (12 + 2 * 3) ** 2
errors = {}
for alpha in (8.0, 16.0, 32.0, 1024.0):
    layer = construct.mixed_heads(conv, count.attention, count.mixture, alpha=alpha)
    assert layer.heads == count.heads == 2
    carried = float((layer.w_val @ layer.w_out).abs().sum() * x.abs().max())
    bound = 2 * carried * (tokens * exp(-alpha) + (tokens + 64) * 2**-53)
    errors[alpha] = float((layer(x) - conv(x)).abs().max())
    print(f"two heads at α = {alpha:>6}: off by {errors[alpha]:.1e}, at most {bound:.1e}")
    assert errors[alpha] <= bound

# %%
assert errors[1024.0] < errors[16.0] < errors[8.0]
