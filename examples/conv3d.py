# %% [markdown]
"""The theorem in three dimensions: a Conv3d as attention, with positions encoded in D_p = d + 1 = 4
numbers.
"""

# %%
import torch
from torch import nn

import construct
import verify

# %%
torch.manual_seed(0)
conv = nn.Conv3d(
    2, 3, kernel_size=(3, 2, 3), stride=(1, 2, 1), padding=(1, 0, 1), dilation=(1, 1, 2)
)
layer = construct.conv_to_mhsa(conv)
video = torch.randn(1, 2, 4, 6, 7)  # (batch, channels, frames, height, width)

# %%
heads, d_k, d_p = layer.w_key_pos.shape
print(f"{conv}\n→ {heads} heads, r_δ = (‖δ‖², δ_1, δ_2, δ_3): D_p = {d_p}")
sharpness, shifts = layer.centres()  # read back from the parameters
print(
    f"head 0 looks {shifts[0].int().tolist()} tokens away, head {heads - 1} looks {shifts[-1].int().tolist()}"
)

# %%
discrepancy = verify.compare(conv, layer, video)
print(f"{discrepancy.compared} outputs; greatest difference {discrepancy.max_abs:.2e}:", end=" ")
print(f"{discrepancy.interior:.2e} inside, {discrepancy.border:.2e} at the border")

# %%
attention = layer.attention_probabilities(video)
print(f"attention weights that occur: {attention.unique().tolist()}")
assert d_p == 4
assert heads == 3 * 2 * 3
assert attention.unique().tolist() == [0.0, 1.0], "each head attends exactly one token"
assert discrepancy.max_abs < 1e-5, "and the layer computes the convolution, up to rounding"
