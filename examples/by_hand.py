# %% [markdown]
"""One 3×3 kernel by hand: nine heads, where each looks, the attention of one query, and the sum
over the heads.

The builder is not used.  All numbers are small integers, so the result must equal conv2d bit for
bit.
"""

# %%
from itertools import product

import torch

from construct import MHSA, ConvGeometry, MHSAWeights

# %%
kernel = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
image = torch.arange(1.0, 17.0).reshape(1, 1, 4, 4)
alpha = 1024.0

# %% [markdown]
# Lemma 1: one head for each kernel position.  Head $h$ looks at the key $q + τ_h$.

# %%
shifts = list(product((-1, 0, 1), repeat=2))

# %% [markdown]
# Lemma 2: $v_h = −α(1, −2τ_h)$, so that $v_h·r_δ = −α(‖δ − τ_h‖² − ‖τ_h‖²)$ with $r_δ = (‖δ‖², δ)$.

# %%
v = torch.tensor([[-alpha, 2 * alpha * a, 2 * alpha * b] for a, b in shifts])
for tau, row, weight in zip(shifts, v.tolist(), kernel.flatten().tolist(), strict=True):
    print(f"the head with weight {weight:.0f} looks at {tau!s:>8}: v = {row}")

# %% [markdown] Theorem 1: all parameters of the layer.  Content terms are 0; $W_{val}$ is the
# head's kernel entry, $W_{out}$ is 1.

# %%
weights = MHSAWeights(
    w_qry=torch.zeros(9, 1, 3),  # (heads, D_in, D_k)
    w_key=torch.zeros(9, 1, 3),
    w_key_pos=torch.eye(3).repeat(9, 1, 1),  # (heads, D_k, D_p): the encoding unchanged
    u=torch.zeros(9, 3),
    v=v,
    w_val=kernel.reshape(9, 1, 1, 1),  # (heads, groups, D_in, D_h)
    w_out=torch.ones(9, 1, 1, 1),
    b_out=torch.zeros(1),
)
layer = MHSA(ConvGeometry(1, 1, (3, 3), (1, 1), (1, 1), "zeros", (1, 1), 1), weights)

# %% [markdown] The query of the first output is the token (1, 1) of the 6×6 padded grid; each head
# attends one token.

# %%
tokens = torch.nn.functional.pad(image, (1, 1, 1, 1)).flatten()
attention = layer.attention_probabilities(image)[0, :, 0]  # (heads, keys)
total = 0.0
for weight, row in zip(kernel.flatten().tolist(), attention, strict=True):
    key = int(row.argmax())
    total += weight * float(tokens[key])
    print(
        f"weight {weight:.0f} × token {divmod(key, 6)} = {tokens[key]:.0f}, attended with probability {row[key]}"
    )
print(f"their sum is {total:.0f}")

# %%
expected = torch.nn.functional.conv2d(image, kernel[None, None], padding=1)
output = layer(image).detach()
print(f"the layer:\n{output[0, 0]}\nconv2d:\n{expected[0, 0]}")
assert torch.equal(output, expected), "equal bit for bit"
assert total == float(output[0, 0, 0, 0]), "and the sum by hand is the first output"
