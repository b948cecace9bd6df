# %% [markdown]
"""What goes wrong, and how it looks: α too small, no tokens for the padding, and a non-finite
pixel.
"""

# %%
import torch
from torch import nn

import construct
import verify
from construct.encoding import quadratic

torch.manual_seed(0)
conv = nn.Conv2d(1, 1, 3, padding=1)
image = torch.randn(1, 1, 6, 6)

# %% [markdown]
# 1. α too small.  Attention leaks to the neighbours: the certificate bounds by how much, and
# is not PROVED.

# %%
soft = construct.conv_to_mhsa(conv, alpha=4.0)
certificate = verify.certify(conv, soft, grid=(6, 6))
print(
    f"α = 4: {certificate.verdict.name}, leakage up to {float(certificate.leakage.max()):.2g} for |x| ≤ 1;",
    end=" ",
)
print(f"on this image the difference is {verify.compare(conv, soft, image).max_abs:.2g}")
assert certificate.verdict.name != "PROVED"

# %% [markdown] 2. No tokens for the padding.  A head that looks over the edge does not see nothing:
# the softmax must attend something, and picks the nearest token.  That amounts to replicate
# padding, whatever the convolution does.

# %%
cells = torch.cartesian_prod(torch.arange(6.0), torch.arange(6.0)).double()
delta = cells[None, :, :] - cells[:, None, :]  # (queries, keys, 2), over the 36 pixels and no more
r = torch.stack(quadratic.r(delta.unbind(-1)))
total = torch.zeros(36).double() + conv.get_parameter("bias").item()
for tau, weight in zip(
    torch.cartesian_prod(torch.arange(-1, 2), torch.arange(-1, 2)),
    conv.weight.detach().flatten(),
    strict=True,
):
    score = torch.einsum("p,pqk->qk", torch.tensor(quadratic.v(tau.tolist(), 1024.0)).double(), r)
    total += weight.double() * torch.softmax(score, dim=1) @ image.flatten().double()
unpadded = total.reshape(1, 1, 6, 6)
copies = nn.functional.conv2d(
    nn.functional.pad(image, (1, 1, 1, 1), mode="replicate"), conv.weight, conv.bias
).detach()
apart = (unpadded - conv(image).detach()).abs()
inside, border = float(apart[..., 1:-1, 1:-1].max()), float(apart.max())
print(
    f"no padding tokens: {inside:.0e} from the convolution inside, {border:.2f} at the border;",
    end=" ",
)
print(f"{float((unpadded - copies).abs().max()):.0e} from the one that pads with copies")
assert inside < 1e-5 < 0.1 < border, "an interior test alone would pass it"
assert (unpadded - copies).abs().max() < 1e-5

# %% [markdown] 3. A pixel that is infinite.  In the convolution it spoils 3 × 3 outputs; dense
# attention multiplies it by 0 elsewhere, and 0·∞ is NaN.  That is why every certificate says
# "finite inputs".

# %%
image[0, 0, 2, 2] = torch.inf
sharp = construct.conv_to_mhsa(conv, execution="dense")
with torch.no_grad():
    theirs, ours = conv(image).isfinite().sum().item(), sharp(image).isfinite().sum().item()
print(
    f"one infinite pixel: {theirs} of 36 outputs of the convolution are finite, {ours} of the attention"
)
assert (theirs, ours) == (27, 0)
