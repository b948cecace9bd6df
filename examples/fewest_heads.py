# %% [markdown]
"""The least number of heads: any filter of one channel takes two."""

# %%
from typing import Any

import torch

import construct
import verify
from construct.encoding.encoding import Encoding
from construct.heads import tap_shifts

# %% [markdown] A filter of 7 × 7 pixels and one channel, with weights of both signs.  The theorem
# takes 49 heads, one a tap; two are enough, and one is not.

# %%
torch.manual_seed(0)
conv = torch.nn.Conv2d(1, 1, 7, padding=3, bias=False, dtype=torch.float64)
count = verify.heads_needed(conv)
print(count)
assert count.relation is not None
weighted = {tap: f"{float(weight):.3f}" for tap, weight in enumerate(count.relation) if weight}
print(f"one is not, as a sum of taps with weights λ > 0 vanishes, exactly: λ = {weighted}")

# %% [markdown] Head $h$ pays the attention $P_{hτ}$ to the token at $q + τ$.  A relative encoding by table
# can: $r_δ$ is the unit vector of the tap at δ, and $v_{hτ} = α + \ln P_{hτ}$, or 0 where that is 0.


# %%
class Table(Encoding):
    """r_δ is the unit vector of δ among the taps, zero at other shifts: D_p = K^d."""

    def __init__(self, geometry: construct.ConvGeometry):
        self.taps = torch.tensor(tap_shifts(geometry))  # (taps, d)

    def pos_dim(self, dims: int) -> int:
        """The number of taps."""
        return len(self.taps)

    def r(self, grid) -> torch.Tensor:
        """(taps, shifts)."""
        shifts = torch.stack(grid.shifts())  # (d, shifts)
        return (self.taps[:, :, None] == shifts).all(dim=1).double()

    def centres(self, c: torch.Tensor):
        """Heads that share their attention have none."""
        raise ValueError("a table has no centres")


def attention(conv: Any, count: verify.HeadCount, alpha: float) -> construct.MHSA:
    """The layer with the fewest heads: head h carries the matrix Σ_τ mixture[h, τ] W_τ."""
    theorem = construct.conv_to_mhsa(conv)  # for its geometry, and its head h for tap h
    order = -1 if conv.transposed else 1  # transposed, the heads read the kernel backwards
    share = torch.tensor(count.attention.astype(float)[:, ::order].copy())
    v = torch.where(share > 0, alpha + share.log(), 0.0)
    heads, taps = share.shape
    tap_matrices = (theorem.w_val @ theorem.w_out).detach()
    mixture = torch.tensor(count.mixture.astype(float)[:, ::order].copy()).to(tap_matrices)
    values = torch.einsum("ht,tgio->hgio", mixture, tap_matrices)
    unit = torch.eye(values.shape[-1]).to(values).expand(heads, values.shape[1], -1, -1)
    nothing = torch.zeros(heads, conv.in_channels, taps).to(values)
    weights = construct.MHSAWeights(
        w_qry=nothing,
        w_key=nothing.clone(),
        w_key_pos=torch.eye(taps, dtype=torch.float64).repeat(heads, 1, 1),
        u=nothing[:, 0],
        v=v,
        w_val=values,
        w_out=unit.contiguous(),
        b_out=theorem.b_out.detach(),
    )
    return construct.MHSA(theorem.geometry, weights, encoding=Table(theorem.geometry))


# %%
x = torch.randn(1, 1, 12, 12, dtype=torch.float64)
errors = {}
with torch.no_grad():
    for alpha in (2.0, 8.0, 32.0, 1024.0):
        errors[alpha] = float((attention(conv, count, alpha)(x) - conv(x)).abs().max())
        print(f"two heads at α = {alpha:>6}: off by {errors[alpha]:.1e}")

# %%
assert count.heads == 2
assert errors[1024.0] < 1e-12 < errors[32.0] < 1e-9 < errors[2.0]
