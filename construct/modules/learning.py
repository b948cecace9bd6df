"""Parametrizations with which an MHSA layer learns the centre and sharpness of every head, or gated
content attention.

``torch.nn.utils.parametrize`` computes ``v`` (and a gated ``w_qry``) from new parameters; all other
code reads ``v`` as usual.  :func:`settle` turns computed tensors into plain ones, for files.

The layer learns log α, so α stays positive, every head keeps a centre, and a step scales α.  At
full sharpness (α = 1024) attention is one-hot and the gradients of all scores are exactly zero:
start from a moderate α to learn.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from construct.attention import MHSA
from construct.encoding import quadratic
from construct.encoding.encodings import Covariance, Encoding, Quadratic


class _HeadVector(nn.Module):
    """A parametrization of v (heads, D_k) in d dimensions."""

    def __init__(self, dims: int, key_dim: int):
        super().__init__()
        self.dims = dims
        self.key_dim = key_dim


class IsotropicGaussian(_HeadVector):
    """Parametrization v = −α(1, −2τ, 0, …, 0) by log α (heads,) and τ (heads, d)."""

    def forward(self, log_alpha: Tensor, tau: Tensor) -> Tensor:
        """Log α (heads,), τ (heads, d) → v (heads, D_k)."""
        return _padded(quadratic.v(tau.unbind(1), log_alpha.exp()), self.key_dim)

    def right_inverse(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Log α and τ of a given v, as ``register_parametrization`` requires.

        Raises:
            ValueError: a head has no centre, because its α is not positive.
        """
        alpha, tau = Quadratic().centres(v[:, : self.dims + 1].double())
        without = (~(alpha > 0)).nonzero().flatten().tolist()
        if without:
            what = f"MHSA: head {without[0]} has no centre to start from"
            raise ValueError(f"{what}: its α is {float(alpha[without[0]]):g}")
        return alpha.log().to(v.dtype), tau.to(v.dtype)


class Gaussian(_HeadVector):
    """Parametrization of v by M (heads, d, d) and τ (heads, d): a Gaussian with precision
    Σ⁻¹ = MᵀM ≥ 0.
    """

    def forward(self, root: Tensor, tau: Tensor) -> Tensor:
        """M (heads, d, d), τ (heads, d) → v (heads, D_k)."""
        precision = (root.mT @ root).permute(1, 2, 0)  # (d, d, heads)
        return _padded(
            quadratic.v_covariance(tau.unbind(1), [row.unbind(0) for row in precision]),
            self.key_dim,
        )

    def right_inverse(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """M and τ of a given v, as ``register_parametrization`` requires.

        Raises:
            ValueError: a head is no Gaussian, because its precision is not positive.
        """
        c = v[:, : Covariance().pos_dim(self.dims)].double()
        lower, failed = torch.linalg.cholesky_ex(-2 * Covariance.form(c)[0])
        without = failed.nonzero().flatten().tolist()
        if without:
            what = f"MHSA: head {without[0]} must be a Gaussian to start from"
            raise ValueError(f"{what}, and its precision is not positive")
        _, tau = Covariance().centres(c)
        return lower.mT.contiguous().to(v.dtype), tau.to(v.dtype)


class Gate(nn.Module):
    """Parametrization g_h·W_qry^h: one learned gate per head for content attention, 0 at first, in
    the dtype of W_qry.
    """

    def __init__(self, like: Tensor):
        super().__init__()
        self.gate = nn.Parameter(like.new_zeros(len(like)))

    def forward(self, w_qry: Tensor) -> Tensor:
        """W_qry (heads, D_in, D_k) → the same shape."""
        return self.gate[:, None, None] * w_qry


def learned_quadratic(layer: MHSA) -> MHSA:
    """Parametrize ``v`` by the sharpness α and the shift τ of every head, to learn them from their
    current values.

    >>> import torch, construct
    >>> layer = learned_quadratic(construct.conv_to_mhsa(torch.nn.Conv2d(1, 1, 3), alpha=1.0))
    >>> {name: tuple(p.shape) for name, p in layer.parametrizations.v.named_parameters()}  # log α, τ
    {'original0': (9,), 'original1': (9, 2)}

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

    >>> import torch, construct
    >>> layer = with_covariance(construct.conv_to_mhsa(torch.nn.Conv2d(1, 1, 3), alpha=1.0))
    >>> {name: tuple(p.shape) for name, p in learned_covariance(layer).parametrizations.v.named_parameters()}  # M, τ
    {'original0': (9, 2, 2), 'original1': (9, 2)}

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

    >>> import torch, construct
    >>> with_covariance(construct.conv_to_mhsa(torch.nn.Conv2d(1, 1, 3), alpha=1.0)).w_key_pos.shape
    torch.Size([9, 5, 5])

    Args:
        layer: with the quadratic encoding and without content (W_qry, W_key and u all zero); it is
            not changed.

    Returns:
        A new layer with D_k = D_p = d(d + 3)/2.

    Raises:
        ValueError: another encoding, or content.
    """
    _require_encoding(layer, Quadratic)
    if any(bool(t.any()) for t in (layer.w_qry, layer.w_key, layer.u)):
        raise ValueError("MHSA: takes a layer without content: W_qry, W_key and u zero")
    # c = −α(1, −2τ) = (c_0, 2ατ), so Σ⁻¹ = −2c_0·1 and Σ⁻¹τ = 2ατ: no number is rounded.
    c = layer.position_vector()
    dims = layer.geometry.dims
    i, j = torch.triu_indices(dims, dims, device=c.device)
    products = torch.where(i == j, c[:, :1], 0.0)
    v = torch.cat([products, c[:, 1:]], dim=1).to(layer.v.dtype)
    content = layer.w_qry.new_zeros(layer.heads, layer.in_channels, v.shape[1])
    copied = settle(copy.deepcopy(layer))
    copied._encoding = Covariance.name
    for name, tensor in (
        ("w_qry", content),
        ("w_key", content.clone()),
        ("w_key_pos", torch.eye(v.shape[1], device="cpu").to(v).repeat(layer.heads, 1, 1)),
        ("u", layer.u.new_zeros(v.shape)),
        ("v", v),
    ):
        setattr(copied, name, nn.Parameter(tensor, requires_grad=False))
    return copied


def gate_content(layer: MHSA, *, generator: torch.Generator | None = None) -> MHSA:
    """Add content attention with a learned gate per head, W_qry = g_h·W, with g = 0 at first.

    With g = 0 and u = 0 only position scores remain, so the function is unchanged; but the gates,
    W_key and u have gradients from the first step on (W from the second), unless attention is
    one-hot.

    >>> import torch, construct
    >>> layer = gate_content(construct.conv_to_mhsa(torch.nn.Conv2d(1, 1, 3), alpha=1.0))
    >>> layer.parametrizations.w_qry[0].gate.shape, bool(layer.w_qry.any())
    (torch.Size([9]), False)

    Args:
        layer: changed in place; zero W_qry and W_key are initialised by Xavier's rule, and u must
            be zero.
        generator: the random number generator; by default torch's global one.

    Returns:
        The layer; ``parametrizations.w_qry`` holds W (``original``) and g (``[0].gate``).

    Raises:
        ValueError: W_qry is already parametrized, or u is not zero.
    """
    if parametrize.is_parametrized(layer, "w_qry"):
        raise ValueError("MHSA: W_qry is parametrized already")
    if bool(layer.u.any()):
        raise ValueError("MHSA: u attends to content without the gate; it must be zero")
    for name in ("w_qry", "w_key"):
        weight = getattr(layer, name)
        if not bool(weight.any()):
            for matrix in weight.detach():
                nn.init.xavier_uniform_(matrix, generator=generator)
    for weight in (layer.w_qry, layer.w_key, layer.u):
        weight.requires_grad_()
    parametrize.register_parametrization(layer, "w_qry", Gate(layer.w_qry.detach()))
    return layer


def settle(layer: MHSA) -> MHSA:
    """Remove all parametrizations of a layer in place, keeping the current values as plain, frozen
    parameters.

    >>> import torch, construct
    >>> layer = learned_quadratic(construct.conv_to_mhsa(torch.nn.Conv2d(1, 1, 3), alpha=1.0))
    >>> settle(layer).v.shape
    torch.Size([9, 3])

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


def _padded(components: tuple[Tensor, ...], key_dim: int) -> Tensor:
    """The components of v as columns, padded with zeros: (heads, D_k)."""
    return nn.functional.pad(torch.stack(components, dim=1), (0, key_dim - len(components)))


def _parametrize_v(layer: MHSA, encoding: type[Encoding], kind: type[_HeadVector]) -> MHSA:
    """Parametrize v by trainable parameters; the layer must have this encoding and Ŵ_key = [1; 0],
    so that v is c itself.
    """
    _require_encoding(layer, encoding)
    if parametrize.is_parametrized(layer, "v"):
        raise ValueError("MHSA: v is parametrized already")
    if not has_identity_keys(layer):
        raise ValueError("MHSA: takes a layer with Ŵ_key = [1; 0], as conv_to_mhsa makes them")
    parametrization = kind(layer.geometry.dims, layer.v.shape[1])
    parametrize.register_parametrization(layer, "v", parametrization)
    layer.get_submodule("parametrizations.v").requires_grad_()
    return layer


def _require_encoding(layer: MHSA, encoding: type[Encoding]) -> None:
    if type(layer.encoding) is not encoding:
        own = layer.encoding.name
        raise ValueError(f"MHSA: takes the {encoding.name} encoding, not the {own} one")


def has_identity_keys(layer: MHSA) -> bool:
    """Whether Ŵ_key = [1; 0], so that v, but for zeros at its end, is c itself.

    >>> import torch, construct
    >>> has_identity_keys(construct.conv_to_mhsa(torch.nn.Conv2d(1, 1, 3)))
    True
    """
    identity = torch.eye(*layer.w_key_pos.shape[1:], device="cpu").to(layer.w_key_pos)
    return bool((layer.w_key_pos == identity).all())
