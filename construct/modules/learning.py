"""Attention layers that learn where they look: parametrizations of the one MHSA class, which stays what it is underneath.

``v`` (and ``w_qry``, for a gate) is worked out from parameters of its own by ``torch.nn.utils.parametrize``; whatever reads the
layer, an execution, an audit or a plot, reads ``v`` as of any other.  :func:`settle` makes plain tensors of them again, for files.

α is learned as its logarithm: it stays positive, so that a head keeps a centre at all, and a step changes it by a factor.  At full
sharpness (α = 1024) attention is one-hot and every gradient of the scores is exactly zero: start from a moderate α to learn.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from construct.attention import MHSA
from construct.encoding import quadratic as encoding
from construct.encoding.encodings import Covariance, Quadratic
from construct.weights import MHSAWeights


class IsotropicAim(nn.Module):
    """v = −α(1, −2τ, 0, …, 0) from log α (heads,) and τ (heads, d).

    Args:
        dims: d.
        key_dim: D_k, at least d + 1.
    """

    def __init__(self, dims: int, key_dim: int):
        super().__init__()
        self.dims, self.key_dim = dims, key_dim

    def forward(self, log_alpha: Tensor, tau: Tensor) -> Tensor:
        """Log α (heads,), τ (heads, d) → v (heads, D_k)."""
        return _filled(encoding.v(tau.unbind(1), log_alpha.exp()), self.key_dim)

    def right_inverse(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The log α and τ of this v.

        Raises:
            ValueError: a head has no centre, because its α is not positive.
        """
        alpha, tau = Quadratic().centres(v[:, : self.dims + 1].double())
        if not bool((alpha > 0).all()):
            head = int((alpha > 0).int().argmin())
            raise ValueError(f"MHSA: head {head} has no centre to start from: its α is {float(alpha[head]):g}")
        return alpha.log().to(v.dtype), tau.to(v.dtype)


class GaussianAim(nn.Module):
    """v of a Gaussian from M (heads, d, d) and τ (heads, d), with the precision Σ⁻¹ = MᵀM, which is never negative.

    Args:
        dims: d.
        key_dim: D_k, at least d(d + 3)/2.
    """

    def __init__(self, dims: int, key_dim: int):
        super().__init__()
        self.dims, self.key_dim = dims, key_dim

    def forward(self, spread: Tensor, tau: Tensor) -> Tensor:
        """M (heads, d, d), τ (heads, d) → v (heads, D_k)."""
        precision = (spread.mT @ spread).permute(1, 2, 0)  # (d, d, heads)
        return _filled(encoding.v_covariance(tau.unbind(1), [row.unbind(0) for row in precision]), self.key_dim)

    def right_inverse(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """An M and the τ of this v.

        Raises:
            ValueError: a head is no Gaussian, because its precision is not positive.
        """
        c = v[:, : Covariance().pos_dim(self.dims)].double()
        lower, failed = torch.linalg.cholesky_ex(-2 * Covariance.form(c)[0])
        if bool(failed.any()):
            head = int(failed.ne(0).int().argmax())
            raise ValueError(f"MHSA: head {head} is no Gaussian to start from: its precision is not positive")
        return lower.mT.contiguous().to(v.dtype), Covariance().centres(c)[1].to(v.dtype)


class Gate(nn.Module):
    """g_h·W_qry^h: content, as far as the gate of the head is open.

    Args:
        like: W_qry, whose type and device the gates have; they start at 0, closed.
    """

    def __init__(self, like: Tensor):
        super().__init__()
        self.gate = nn.Parameter(like.new_zeros(len(like)))

    def forward(self, w_qry: Tensor) -> Tensor:
        """(heads, D_in, D_k)."""
        return self.gate[:, None, None] * w_qry


def learned_quadratic(layer: MHSA) -> MHSA:
    """Let a layer learn the sharpness α and the shift τ of every head, from where they are now.

    Args:
        layer: of the quadratic encoding, each head with a centre (α > 0); changed in place.

    Returns:
        The layer: ``v`` is worked out from ``parametrizations.v.original0`` (log α, (heads,)) and ``original1`` (τ, (heads, d)).

    Raises:
        ValueError: another encoding, a head without a centre, Ŵ_key not [1; 0], or a ``v`` that is parametrized already.
    """
    _require_aims(layer, Quadratic.name)
    return _worked_out(layer, IsotropicAim(layer.geometry.dims, layer.v.shape[1]))


def learned_covariance(layer: MHSA) -> MHSA:
    """Let a layer learn the centre and the covariance of every head, from where they are now.

    Args:
        layer: of the covariance encoding (:func:`with_covariance` makes one), each head with a centre; changed in place.

    Returns:
        The layer: ``v`` is worked out from ``parametrizations.v.original0`` (M, (heads, d, d), with Σ⁻¹ = MᵀM) and ``original1``
        (τ, (heads, d)).

    Raises:
        ValueError: another encoding, a head without a centre, Ŵ_key not [1; 0], or a ``v`` that is parametrized already.
    """
    _require_aims(layer, Covariance.name)
    return _worked_out(layer, GaussianAim(layer.geometry.dims, layer.v.shape[1]))


@torch.no_grad()
def with_covariance(layer: MHSA) -> MHSA:
    """The same function with the covariance encoding: Σ⁻¹ = 2α·1.

    Args:
        layer: of the quadratic encoding and without content (W_qry, W_key and u all zero), which is not changed.

    Returns:
        A new layer with D_k = D_p = d(d + 3)/2.

    Raises:
        ValueError: another encoding, or content, which has no place there.
    """
    if layer.encoding.name != Quadratic.name:
        raise ValueError(f"MHSA: takes the quadratic encoding, not the {layer.encoding.name} one")
    if any(bool(t.any()) for t in (layer.w_qry, layer.w_key, layer.u)):
        raise ValueError("MHSA: takes a layer without content: W_qry, W_key and u zero")
    # c = −α(1, −2τ) = (c_0, 2ατ), so Σ⁻¹ = −2c_0·1 and Σ⁻¹τ is the rest of it: no number is rounded.
    c, dims = layer.position_vector(), layer.geometry.dims
    zero = torch.zeros_like(c[:, 0])
    products = [c[:, 0] if i == j else zero for i in range(dims) for j in range(i, dims)]
    v = torch.stack([*products, *c[:, 1:].unbind(1)], dim=1)
    return _with_keys(layer, v.shape[1], Covariance(), v.to(layer.v.dtype))


@torch.no_grad()
def with_key_dim(layer: MHSA, key_dim: int) -> MHSA:
    """The same function with wider keys, so that content has room: Ŵ_key = [1; 0], and v, u, W_qry, W_key filled up with zeros.

    Args:
        layer: without content, not parametrized, not relative; it is not changed.
        key_dim: D_k, at least D_p.

    Raises:
        ValueError: the layer has content, or another encoding, or D_k is too small.
    """
    if any(bool(t.any()) for t in (layer.w_qry, layer.w_key, layer.u)) or layer.offsets:
        raise ValueError("MHSA: takes a layer without content, and no learned relative embedding")
    c = layer.position_vector()
    if key_dim < c.shape[1]:
        raise ValueError(f"MHSA: D_k = {key_dim} has no room for the {c.shape[1]} components of the encoding")
    return _with_keys(layer, key_dim, layer.encoding, c.to(layer.v.dtype))


def gate_content(layer: MHSA, *, generator: torch.Generator | None = None) -> MHSA:
    """Put attention to content behind a gate that starts closed, one a head: W_qry = g_h·W.

    With g = 0 and u = 0 every score is that of positions, and the function is the same; but the gates, W_key and u have
    gradients from the first step on (W from the second), provided that attention is not one-hot.

    Args:
        layer: changed in place; its W_qry and W_key are drawn by Xavier's rule where they are zero, and u must be zero.
        generator: of the random numbers; by default torch's own.

    Returns:
        The layer: ``parametrizations.w_qry`` holds W (``original``) and g (``[0].gate``).

    Raises:
        ValueError: there is a gate already, or u is not zero.
    """
    if parametrize.is_parametrized(layer, "w_qry"):
        raise ValueError("MHSA: W_qry is parametrized already")
    if bool(layer.u.any()):
        raise ValueError("MHSA: u attends to content without the gate; it must be zero")
    for name in ("w_qry", "w_key"):
        weight = getattr(layer, name)
        if not bool(weight.any()):
            for one in weight.detach():
                nn.init.xavier_uniform_(one, generator=generator)
    for weight in (layer.w_qry, layer.w_key, layer.u):
        weight.requires_grad_()
    parametrize.register_parametrization(layer, "w_qry", Gate(layer.w_qry.detach()))
    return layer


def settle(layer: MHSA) -> MHSA:
    """Make plain tensors of what is worked out from parameters: the very numbers that the layer has now.

    Args:
        layer: changed in place; nothing happens to one that is not parametrized.

    Returns:
        The layer, which can be saved, certified and converted as any other.
    """
    if not parametrize.is_parametrized(layer):
        return layer
    with torch.enable_grad():
        values = {name: getattr(layer, name) for name in layer.parametrizations}  # type: ignore[union-attr]
    # Not by torch's remove_parametrizations: it changes the class, which copies of the layer share.
    del layer.parametrizations
    layer.__class__ = type(layer).__bases__[0]
    for name, value in values.items():
        setattr(layer, name, nn.Parameter(value.detach().clone(), requires_grad=value.requires_grad))
    return layer


class AbsolutePositions(nn.Module):
    """Learned positions added to the input: X + P, for attention that has no other way to tell where a token is.

    Args:
        channels: C.
        grid: the spatial size of the inputs.
    """

    def __init__(self, channels: int, grid: tuple[int, ...]):
        super().__init__()
        self.places = nn.Parameter(0.02 * torch.randn(channels, *grid))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, *grid) → the same shape.

        Raises:
            ValueError: an input of another size.
        """
        if x.shape[1:] != self.places.shape:
            raise ValueError(
                f"the positions are those of {tuple(self.places.shape)}, and this input is {tuple(x.shape[1:])}"
            )
        return x + self.places


def _filled(aim: tuple[Tensor, ...], key_dim: int) -> Tensor:
    """The components side by side, and zeros up to D_k: (heads, D_k)."""
    return nn.functional.pad(torch.stack(aim, dim=1), (0, key_dim - len(aim)))


def _require_aims(layer: MHSA, name: str) -> None:
    """Make sure that the layer has this encoding and that v is c itself, and not yet worked out from anything."""
    if layer.encoding.name != name:
        raise ValueError(f"MHSA: takes the {name} encoding, not the {layer.encoding.name} one")
    if parametrize.is_parametrized(layer, "v"):
        raise ValueError("MHSA: v is parametrized already")
    key_dim, pos_dim = layer.w_key_pos.shape[1:]
    if not bool((layer.w_key_pos == torch.eye(key_dim, pos_dim).to(layer.w_key_pos)).all()):
        raise ValueError("MHSA: takes a layer with Ŵ_key = [1; 0], as conv_to_mhsa makes them")


def _worked_out(layer: MHSA, aim: nn.Module) -> MHSA:
    """Work v out by this from now on, and learn what it is worked out from."""
    frozen = not layer.v.requires_grad
    layer.v.requires_grad_()
    try:
        parametrize.register_parametrization(layer, "v", aim)
    except ValueError:
        layer.v.requires_grad_(not frozen)
        raise
    return layer


def _with_keys(layer: MHSA, key_dim: int, kind: Any, v: Tensor) -> MHSA:
    """A copy of a layer with this encoding and Ŵ_key = [1; 0], D_k as given, v filled up with zeros, and no content."""
    heads, channels, like = layer.heads, layer.in_channels, layer.w_qry
    content = like.new_zeros(heads, channels, key_dim)
    weights = MHSAWeights(
        w_qry=content,
        w_key=content.clone(),
        w_key_pos=torch.eye(key_dim, v.shape[1]).to(v).repeat(heads, 1, 1),
        u=like.new_zeros(heads, key_dim),
        v=nn.functional.pad(v, (0, key_dim - v.shape[1])),
        w_val=layer.w_val.detach().clone(),
        w_out=layer.w_out.detach().clone(),
        b_out=layer.b_out.detach().clone(),
    )
    made = MHSA(layer.geometry, weights, layer.execution, encoding=kind)
    for name in ("w_val", "w_out", "b_out"):
        getattr(made, name).requires_grad_(getattr(layer, name).requires_grad)
    return made.train(layer.training)
