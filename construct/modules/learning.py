"""What learned layers need: heads computed from their centres, and plain tensors of computed ones, for files."""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from construct.attention import MHSA
from construct.encoding import quadratic
from construct.encoding.encoding import Quadratic


class IsotropicGaussian(nn.Module):
    """Parametrization v = −α(1, −2τ, 0, …, 0) by log α (heads,) and τ (heads, d)."""

    def __init__(self, dims: int, key_dim: int):
        super().__init__()
        self.dims = dims
        self.key_dim = key_dim

    def forward(self, log_alpha: Tensor, tau: Tensor) -> Tensor:
        """Log α (heads,), τ (heads, d) → v (heads, D_k)."""
        v = quadratic.v(tau.unbind(1), log_alpha.exp())
        return nn.functional.pad(torch.stack(v, dim=1), (0, self.key_dim - len(v)))

    def right_inverse(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Log α and τ of a given v, as ``register_parametrization`` requires.

        Raises:
            ValueError: a head has no centre, because its α is not positive.
        """
        alpha, tau = Quadratic().centres(v[:, : self.dims + 1].double())
        if not bool((alpha > 0).all()):
            head = int((alpha > 0).int().argmin())
            raise ValueError(
                f"MHSA: head {head} has no centre to start from: its α is {float(alpha[head]):g}"
            )
        return alpha.log().to(v.dtype), tau.to(v.dtype)


def settle(layer: MHSA) -> MHSA:
    """Remove all parametrizations of a layer in place, keeping the current values as plain, frozen
    parameters.

    >>> import torch, construct
    >>> layer = construct.conv_to_mhsa(torch.nn.Conv2d(1, 1, 3))
    >>> changed = construct.learn(layer, heads=2, key_dim=8)
    >>> settle(layer).w_qry.shape
    torch.Size([11, 1, 8])

    Returns:
        The layer, which can be saved, certified and converted.
    """
    if not parametrize.is_parametrized(layer):
        return layer
    trained = ("w_val", "w_out", "b_out")  # as in a new layer
    with torch.no_grad():
        values = {name: getattr(layer, name) for name in layer.parametrizations}  # type: ignore[union-attr]
    del layer.parametrizations
    # register_parametrization gave the layer a class of its own, derived from its class.  torch's
    # remove_parametrizations would first take the tensors out of that class, which copies of the
    # layer share.
    layer.__class__ = type(layer).__bases__[0]
    for name, value in values.items():
        setattr(layer, name, nn.Parameter(value.clone(), requires_grad=name in trained))
    return layer


def has_identity_keys(layer: MHSA) -> bool:
    """Whether Ŵ_key = [1; 0], so that v, but for zeros at its end, is c itself.

    >>> import torch, construct
    >>> has_identity_keys(construct.conv_to_mhsa(torch.nn.Conv2d(1, 1, 3)))
    True
    """
    identity = torch.eye(*layer.w_key_pos.shape[1:], device="cpu").to(layer.w_key_pos)
    return bool((layer.w_key_pos == identity).all())
