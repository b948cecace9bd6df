# %% [markdown]
"""Patches as tokens, as a vision transformer sees an image: an 11 × 11 convolution with nine heads.

Over pixels it takes a head for each of its 121 taps.  Cut into patches of 8 × 8 pixels, the same
convolution has 3 × 3 taps: what an output reads lies in its own patch and the eight around it.  A
token has 64 times as many channels, and the entries of the kernel only move.
"""

# %%
import torch
from torch import nn

import construct
import verify

P = 8
torch.manual_seed(0)
conv = nn.Conv2d(3, 4, kernel_size=11, padding=5)
pixels = construct.conv_to_mhsa(conv)
layer = construct.conv_to_mhsa(conv, patch=P)
image = torch.randn(1, 3, 32, 48)

# %%
print(f"tokens are pixels:  {pixels.heads} heads, {32 * 48} tokens of 3 channels")
print(f"tokens are patches: {layer.heads} heads, {4 * 6} tokens of {3 * P * P} channels")
discrepancy = verify.compare(conv, layer, image)
print(f"greatest difference to the convolution: {discrepancy.max_abs:.1e}")

# %% [markdown]
# The tokens of a vision transformer: `unfold` lists the patches, row by row.

# %%
tokens = nn.functional.unfold(image, P, stride=P).transpose(1, 2)
answer = layer(tokens, grid=(32, 48))
print(f"tokens {tuple(tokens.shape)} → {tuple(answer.shape)}")
joined = nn.functional.fold(answer.transpose(1, 2), (32, 48), P, stride=P)

# %% [markdown]
# One stock `nn.MultiheadAttention` over the patches, and the verdict for all images of this size.

# %%
stock = construct.to_torch_mha(layer, grid=(32, 48))
print(f"{type(stock.attention).__name__} with {stock.attention.num_heads} heads")
certificate = verify.certify(conv, layer, grid=(32, 48))
print(f"{certificate.verdict.name}, for all images of 32 × 48 pixels with |x| ≤ 1")

assert layer.heads == 9
assert pixels.heads == 121
assert discrepancy.max_abs < 1e-4
assert torch.allclose(joined, conv(image), atol=1e-4)
assert torch.allclose(stock(image), conv(image), atol=1e-4)
assert certificate.verdict.name == "PROVED"
