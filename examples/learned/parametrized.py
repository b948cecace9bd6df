"""Layers whose heads learn where they look, from the centre and the sharpness or covariance that they have.

``torch.nn.utils.parametrize`` computes ``v`` from new parameters; all other code reads ``v`` as usual.
:func:`construct.modules.learning.settle` makes plain tensors of computed ones, for files.

The layer learns log α, so α stays positive, every head keeps a centre, and a step scales α.  At
full sharpness (α = 1024) attention is one-hot and the gradients of all scores are exactly zero:
start from a moderate α to learn.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from construct.attention import MHSA
from construct.encoding import quadratic
from construct.encoding.encodings import Covariance, Encoding, Quadratic
from construct.modules.learning import IsotropicGaussian, has_identity_keys
from construct.weights import MHSAWeights


class Gaussian(nn.Module):
    """Parametrization of v by M (heads, d, d) and τ (heads, d): a Gaussian with precision
    Σ⁻¹ = MᵀM ≥ 0.
    """

    def __init__(self, dims: int, key_dim: int):
        super().__init__()
        self.dims = dims
        self.key_dim = key_dim

    def forward(self, root: Tensor, tau: Tensor) -> Tensor:
        """M (heads, d, d), τ (heads, d) → v (heads, D_k)."""
        precision = (root.mT @ root).permute(1, 2, 0)  # (d, d, heads)
        v = quadratic.v_covariance(tau.unbind(1), [row.unbind(0) for row in precision])
        return nn.functional.pad(torch.stack(v, dim=1), (0, self.key_dim - len(v)))

    def right_inverse(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """M and τ of a given v, as ``register_parametrization`` requires.

        Raises:
            ValueError: a head is no Gaussian, because its precision is not positive.
        """
        c = v[:, : Covariance().pos_dim(self.dims)].double()
        lower, failed = torch.linalg.cholesky_ex(-2 * Covariance.form(c)[0])
        if bool(failed.any()):
            head = int(failed.ne(0).int().argmax())
            raise ValueError(
                f"MHSA: head {head} must be a Gaussian to start from, and its precision is not positive"
            )
        return lower.mT.contiguous().to(v.dtype), Covariance().centres(c)[1].to(v.dtype)


def learned_quadratic(layer: MHSA) -> MHSA:
    """Parametrize ``v`` by the sharpness α and the shift τ of every head, to learn them from their
    current values.

    Args:
        layer: a layer with the quadratic encoding, each head with a centre (α > 0); changed in
            place.

    Returns:
        The layer; ``parametrizations.v`` holds ``original0`` (log α, (heads,)) and ``original1``
        (τ, (heads, d)).

    Raises:
        ValueError: another encoding, a head without a centre, Ŵ_key not [1; 0], or ``v`` already
            parametrized.
    """
    return _parametrize_v(layer, Quadratic, IsotropicGaussian)


def learned_covariance(layer: MHSA) -> MHSA:
    """Parametrize ``v`` by the centre and the covariance of every head, to learn them from their
    current values.

    Args:
        layer: a layer with the covariance encoding (see :func:`with_covariance`), each head with a
            centre; changed in place.

    Returns:
        The layer; ``parametrizations.v`` holds ``original0`` (M, (heads, d, d), with Σ⁻¹ = MᵀM) and
        ``original1`` (τ, (heads, d)).

    Raises:
        ValueError: another encoding, a head without a centre, Ŵ_key not [1; 0], or ``v`` already
            parametrized.
    """
    return _parametrize_v(layer, Covariance, Gaussian)


@torch.no_grad()
def with_covariance(layer: MHSA) -> MHSA:
    """The same function with the covariance encoding: Σ⁻¹ = 2α·1.

    Args:
        layer: with the quadratic encoding and without content (W_qry, W_key and u all zero); it is
            not changed.

    Returns:
        A new layer with D_k = D_p = d(d + 3)/2.

    Raises:
        ValueError: another encoding, or content.
    """
    if type(layer.encoding) is not Quadratic:
        raise ValueError(f"MHSA: takes the quadratic encoding, not the {layer.encoding.name} one")
    if any(bool(t.any()) for t in (layer.w_qry, layer.w_key, layer.u)):
        raise ValueError("MHSA: takes a layer without content: W_qry, W_key and u zero")
    # c = −α(1, −2τ) = (c_0, 2ατ), so Σ⁻¹ = −2c_0·1 and Σ⁻¹τ = 2ατ: no number is rounded.
    c = layer.position_vector()
    dims = layer.geometry.dims
    zero = torch.zeros_like(c[:, 0])
    products = [c[:, 0] if i == j else zero for i in range(dims) for j in range(i, dims)]
    v = torch.stack([*products, *c[:, 1:].unbind(1)], dim=1).to(layer.v.dtype)
    content = layer.w_qry.new_zeros(layer.heads, layer.in_channels, v.shape[1])
    weights = MHSAWeights(
        w_qry=content,
        w_key=content.clone(),
        w_key_pos=torch.eye(v.shape[1], device="cpu").to(v).repeat(layer.heads, 1, 1),
        u=layer.u.new_zeros(v.shape),
        v=v,
        w_val=layer.w_val.detach().clone(),
        w_out=layer.w_out.detach().clone(),
        b_out=layer.b_out.detach().clone(),
    )
    copied = MHSA(
        layer.geometry, weights, layer.execution, encoding=Covariance(), bias=layer.bias is not None
    )
    for name in ("w_val", "w_out", "b_out"):
        getattr(copied, name).requires_grad_(getattr(layer, name).requires_grad)
    return copied.train(layer.training)


def _parametrize_v(
    layer: MHSA, encoding: type[Encoding], kind: type[IsotropicGaussian | Gaussian]
) -> MHSA:
    """Parametrize v by trainable parameters; the layer must have this encoding and Ŵ_key = [1; 0],
    so that v is c itself.
    """
    if type(layer.encoding) is not encoding:
        raise ValueError(
            f"MHSA: takes the {encoding.name} encoding, not the {layer.encoding.name} one"
        )
    if parametrize.is_parametrized(layer, "v"):
        raise ValueError("MHSA: v is parametrized already")
    if not has_identity_keys(layer):
        raise ValueError("MHSA: takes a layer with Ŵ_key = [1; 0], as conv_to_mhsa makes them")
    frozen = not layer.v.requires_grad
    layer.v.requires_grad_()
    try:
        parametrize.register_parametrization(
            layer, "v", kind(layer.geometry.dims, layer.v.shape[1])
        )
    except ValueError:
        layer.v.requires_grad_(not frozen)
        raise
    return layer
