# %% [markdown]
"""Three kinds of attention in one layer: to content, to position, and to both.

A score has four terms (Eq. 6):

$$A_{q,k} = X_q W_{qry} W_{key}^⊤ X_k^⊤ + X_q W_{qry} Ŵ_{key} r_δ + u^⊤ W_{key}^⊤ X_k^⊤ + v^⊤
Ŵ_{key} r_δ$$

Three heads use them differently: the first attends tokens that look like the query's, the second
the token at a shift, wherever the query is and whatever it shows, the third tokens that look alike
*and* are near.
"""

# %%
import torch

from construct import MHSA, ConvGeometry, MHSAWeights

ROWS = ("#####...", "####....", "###..##.", "##...##.", "#....##.", "......##")
picture = torch.tensor([[float(c == "#") for c in row] for row in ROWS])
x = torch.stack([picture, 1 - picture])[None]  # two channels: black, white
query = (3, 5)  # row and column, on the block at the right

# %% [markdown] $W_{qry} W_{key}^⊤$ scores 20 where the colours agree; it uses the first two of the
# three components of a key.

# %%
same = 20.0**0.5 * torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])  # (D_in, D_k)
none, nowhere = torch.zeros(2, 3), torch.zeros(3, 3)
# Positions: v = −α(1, −2τ) through Ŵ_key = I, and for the third head −0.6·‖δ‖² through the
# component that content leaves free.
left = -20.0 * torch.tensor([1.0, 0.0, 6.0])  # τ = (0, −3), sharp
norm = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
weights = MHSAWeights(
    w_qry=torch.stack([same, none, same]),
    w_key=torch.stack([same, none, same]),
    w_key_pos=torch.stack([nowhere, torch.eye(3), norm]),
    u=torch.zeros(3, 3),
    v=torch.stack([torch.zeros(3), left, torch.tensor([0.0, 0.0, -0.6])]),
    w_val=torch.ones(3, 1, 2, 1),
    w_out=torch.ones(3, 1, 1, 1),
    b_out=torch.zeros(1),
)
layer = MHSA(ConvGeometry(2, 1, (1, 1), (1, 1), (0, 0), "zeros", (1, 1), 1), weights)

# %%
attention = (
    layer.attention_probabilities(x).detach()[0, :, query[0] * 8 + query[1]].reshape(3, 6, 8)
)
for name, map_ in zip(("content", "key position", "both"), attention, strict=True):
    print(f"{name}: (the query is Q; darker is more)")
    shades = (map_ / map_.max() * 4).ceil().int().tolist()
    rows = [[".░▒▓█"[v] for v in row] for row in shades]
    rows[query[0]][query[1]] = "Q"
    print("\n".join("".join(row) for row in rows))

# %%
content, position, both = attention
black = picture.bool()
other = layer.attention_probabilities(1 - x.flip(3))[0, :, query[0] * 8 + query[1]].reshape(3, 6, 8)
assert content[black].allclose(content[query]), "all black tokens alike, far and near"
assert content[~black].max() < 1e-6
assert position[3, 2] > 0.999999, "three to the left"
assert other[1].equal(position), "whatever the picture"
assert not other[0].allclose(content)
block = slice(2, 6), slice(5, 8)
assert content[block].sum() < 0.5 < 0.98 < both[block].sum(), "like the query and near it"
