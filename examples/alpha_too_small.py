# %% [markdown]
"""What happens when α is too small: attention leaks to the neighbours, and a bright pixel shows how
much.

Over the reals a head leaks at most $1 − ϑ(α)^{−d}$, with $ϑ(α) = 1 + 2Σ_{n≥1} e^{−αn²}$: never 0,
on any grid.  In floating point the leakage is 0 from some α on: the probabilities are computed in
float64 and rounded to the type of the values, and anything smaller than half of float32's smallest
number becomes 0.
"""

# %%
import math

import torch
from torch import nn

import construct

# %%
conv = nn.Conv2d(1, 1, 3, padding=1, bias=False).requires_grad_(False)
conv.weight.zero_()[0, 0, 1, 1] = 1.0  # the output is the input: only the middle head matters
image = torch.ones(1, 1, 5, 5)
image[0, 0, 2, 2] = 1e30
beside = (0, 0, 2, 3)  # a head that looks here has the bright pixel as a neighbour


def bound(alpha: float, dims: int = 2) -> float:
    """1 − ϑ(α)^{−d}, summed term by term and free of cancellation."""
    excess = 2 * math.fsum(math.exp(-alpha * n * n) for n in range(1, 50))
    return -math.expm1(-dims * math.log1p(excess))


# %%
measured, rounded, shown = {}, {}, {}
print("    α   leaked weight   at most   in float32    beside a pixel of 1e30, where 1 is right")
for alpha in (0.5, 1.0, 4.0, 16.0, 46.0, 103.0, 104.0, 1024.0):
    layer = construct.conv_to_mhsa(conv, alpha=alpha)
    # the middle head, (queries, keys), float64
    attention = layer.attention_probabilities(image)[0, 4]
    others = attention.scatter(1, attention.argmax(dim=1, keepdim=True), 0.0)
    measured[alpha] = float(others.sum(dim=1).max())  # for the query that leaks most
    rounded[alpha] = float(others.float().sum(dim=1).max())
    shown[alpha] = float(layer(image)[beside])
    row = f"{alpha:6} {measured[alpha]:13.3g} {bound(alpha):11.3g} {rounded[alpha]:11.3g}"
    print(f"{row}    {shown[alpha]:.3g}")
    assert measured[alpha] <= bound(alpha) * (1 + 1e-12), "the bound holds"

# %%
print(
    "α = 46 is no threshold in float32: e^−46 = 1e−20 is far above its smallest number, and 1e30 brings it back."
)
assert measured[4.0] > 0.99 * bound(4.0), "and it is tight"
assert shown[46.0] > 1e9
assert measured[104.0] > rounded[104.0] == 0 < rounded[103.0], (
    "float32 rounds the weight to 0 from 104 on"
)
assert shown[104.0] == shown[1024.0] == 1.0
