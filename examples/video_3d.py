# %% [markdown]
"""Three dimensions: a convolution over time that sees where something moves in a video, as
attention.

The kernel subtracts the previous frame from the next.  One of its 3 × 1 × 1 taps is 0: its head
looks at the current frame and carries nothing.
"""

# %%
import torch
from torch import nn

import construct
import verify

FRAMES, HEIGHT, WIDTH = 6, 7, 12
video = torch.zeros(1, 1, FRAMES, HEIGHT, WIDTH)
for frame in range(FRAMES):
    video[0, 0, frame, 2:5, 2 * frame : 2 * frame + 2] = 1.0  # a block that moves to the right
video[0, 0, :, 6, 5] = 1.0  # and a pixel that stands still

# %%
conv = nn.Conv3d(1, 1, (3, 1, 1), bias=False)
with torch.no_grad():
    conv.weight.copy_(torch.tensor([-1.0, 0.0, 1.0]).reshape(1, 1, 3, 1, 1))
layer = construct.conv_to_mhsa(conv)
for weight, shift in zip(
    conv.weight.flatten().tolist(), layer.centres()[1].int().tolist(), strict=True
):
    print(
        f"the head with weight {weight:+.0f} looks {shift} (frames, rows, columns) from the query"
    )

# %% [markdown]
# What appears is +, what vanishes is −; the pixel that stands still gives 0.

# %%
with torch.no_grad():
    motion = layer(video)[0, 0]
middle = motion[1]
print(
    "\n".join("".join({-1.0: "−", 0.0: "·", 1.0: "+"}[v] for v in row) for row in middle.tolist())
)

# %%
certificate = verify.certify(conv, layer, grid=(FRAMES, HEIGHT, WIDTH), input_bound=1.0)
print(
    f"{certificate.verdict.name} for every video of {FRAMES} frames of {HEIGHT} × {WIDTH} pixels with |x| ≤ 1"
)
print(
    f"D_p = {layer.w_key_pos.shape[2]}; the greatest difference allowed is {float(certificate.bound.max()):.1e}"
)
assert torch.equal(motion, conv(video)[0, 0])
assert certificate.verdict.name == "PROVED"
assert middle[6].eq(0).all(), "what stands still gives 0"
assert middle.abs().sum() == 12
