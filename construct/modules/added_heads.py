"""``construct.learn``: attention layers that are the function of their convolutions, and have
gradients.

A one-hot head has none: at full sharpness the gradients of its scores are exactly zero.  So heads
of full softmax attention (Eq. 6) are added beside those of the kernel, with W_out = 0.  The sum of
Eq. 3 is what it was, bit for bit, and W_out learns from the first step on.
"""

from collections import Counter
from collections.abc import Iterable
from math import inf, sqrt

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from construct.attention import MHSA
from construct.encoding.encoding import Quadratic
from construct.modules.learning import IsotropicGaussian, has_identity_keys

POSITIONS = {"free": ("w_qry", "w_key", "u", "v"), "none": ("w_qry", "w_key", "u")}
"""What added heads may learn of positions, and the scores' tensors that they then learn."""


class AddedHeads(nn.Module):
    """Parametrization of a score tensor whose last heads learn.  The rows of the others are
    ``kept``: no optimizer changes them, and no weight decay.
    """

    def __init__(self, kept: Tensor):
        super().__init__()
        self.kept = nn.Parameter(kept, requires_grad=False)

    def forward(self, added: Tensor) -> Tensor:
        """The added heads (heads, …) → all heads, the kept ones first."""
        return torch.cat([self.kept, added])

    def right_inverse(self, tensor: Tensor) -> Tensor:
        """The added heads of a tensor of all heads, as ``register_parametrization`` requires."""
        return tensor[len(self.kept) :].clone()


@torch.no_grad()
def learn(
    net: nn.Module,
    layers: Iterable[str] | None = None,
    heads: int = 4,
    key_dim: int = 32,
    position: str = "free",
    alpha: float | None = None,
    *,
    generator: torch.Generator | None = None,
) -> dict[str, MHSA]:
    """Let attention layers learn, from the function that they are: add heads of full softmax
    attention whose W_out is zero.

    Their scores have all terms of Eq. 6; the heads that a layer has stay as they are.  Of those
    added, W_out has a gradient from the first step on, and all else from the second.  They have the
    layer's D_h; D_k grows for all heads, filled up with zeros.  The layer's parameters are new
    ones, which an optimizer made before does not know, and W_val and W_out learn, also where they
    were frozen.
    :func:`construct.modules.learning.settle` makes plain, frozen scores of the result, for files.

    >>> import torch, construct
    >>> layer = construct.conv_to_mhsa(torch.nn.Conv2d(3, 8, 3, padding=1))
    >>> x = torch.rand(1, 3, 9, 9)
    >>> before = layer(x)
    >>> changed = construct.learn(layer, heads=2)
    >>> layer.w_qry.shape, torch.equal(layer(x), before)
    (torch.Size([11, 3, 32]), True)

    Args:
        net: a layer, or a network; its layers are changed in place.
        layers: the paths of the layers in ``net``; all of them without it.
        heads: how many heads to add to each layer.
        key_dim: D_k of all heads: at least the layer's own, and above D_p for free positions.
        position: "free": the added heads learn positions too, from v = 0 on; "none": they see
            content alone (Ŵ_key = 0).
        alpha: soften the layer's own heads to this sharpness and let them move (log α and τ are
            learned), which changes the function.  Without it they stay.
        generator: the random number generator; by default torch's global one.

    Returns:
        The changed layers, by path; the path of ``net`` itself is empty.

    Raises:
        ValueError: a number does not fit, a path is of no attention layer, or a layer cannot learn
            so: it is parametrized, shares parameters, or has no heads that can move.  Nothing is
            changed then.
    """
    if position not in POSITIONS:
        raise ValueError(f"no position {position!r}; there are {', '.join(POSITIONS)}")
    _require_whole("heads", heads, 1)
    chosen = _chosen(net, layers)
    held = Counter(id(p) for module in net.modules() for p in module.parameters(recurse=False))
    for path, layer in chosen.items():
        try:
            _require_own_parameters(layer, held)
            _require_learnable(layer, key_dim, position, alpha)
        except ValueError as error:
            raise ValueError(f"{path}: {error}".removeprefix(": ")) from None
    learned = POSITIONS[position]
    for layer in chosen.values():
        kept = _widened(layer, key_dim)
        added = _added(kept, heads, position, generator)
        by_name = {name: AddedHeads(kept[name]) for name in learned}
        if alpha is not None:
            kept["v"] *= (alpha / layer.centres()[0]).to(kept["v"])[:, None]
            by_name["v"] = moving = AddedHeads(kept["v"])
            gaussian = IsotropicGaussian(layer.geometry.dims, key_dim)
            parametrize.register_parametrization(moving, "kept", gaussian)
            moving.requires_grad_()
        layer.heads += heads
        for name, rows in kept.items():
            trained = name in (*learned, "w_val", "w_out")
            setattr(layer, name, nn.Parameter(torch.cat([rows, added[name]]), trained))
        for name, parametrization in by_name.items():
            parametrize.register_parametrization(layer, name, parametrization)
    return chosen


def _chosen(net: nn.Module, layers: Iterable[str] | None) -> dict[str, MHSA]:
    """The attention layers that are to learn, by path."""
    by_path = {path: module for path, module in net.named_modules() if isinstance(module, MHSA)}
    if not by_path:
        raise ValueError("there is no attention layer in it; construct.convert makes them")
    if layers is None:
        return by_path
    paths = [layers] if isinstance(layers, str) else list(layers)
    missing = [path for path in paths if path not in by_path]
    if missing or not paths:
        what = f"no attention layer {missing[0]!r}" if missing else "no layer is named"
        raise ValueError(f"{what}; there are {', '.join(map(repr, by_path))}")
    return {path: by_path[path] for path in paths}


def _require_whole(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")


def _require_own_parameters(layer: MHSA, held: Counter[int]) -> None:
    """Refuse a layer with a parameter that another module holds: adding heads would part them."""
    for name, parameter in layer.named_parameters(recurse=False):
        if held[id(parameter)] > 1:
            raise ValueError(f"its {name} is that of another layer too; give each its own to learn")


def _require_learnable(layer: MHSA, key_dim: int, position: str, alpha: float | None) -> None:
    if parametrize.is_parametrized(layer):
        raise ValueError(
            "MHSA: it is parametrized already (construct.modules.learning.settle makes it plain)"
        )
    own, pos_dim = layer.w_key_pos.shape[1:]
    _require_whole("key_dim", key_dim, max(own, pos_dim + 1 if position == "free" else 0))
    if alpha is None:
        return
    if not isinstance(alpha, int | float) or not 0 < alpha < inf:
        raise ValueError(f"alpha must be positive, not {alpha!r}")
    plain = type(layer.encoding) is Quadratic and has_identity_keys(layer)
    if not plain or layer.has_content():
        raise ValueError(
            "MHSA: heads that move must have the quadratic encoding, Ŵ_key = [1; 0] and no content"
        )
    IsotropicGaussian(layer.geometry.dims, own).right_inverse(
        layer.v
    )  # refuses heads without a centre


def _widened(layer: MHSA, key_dim: int) -> dict[str, Tensor]:
    """The tensors of a layer's heads with a larger D_k: those of Eq. 6 filled up with zeros."""
    more = key_dim - layer.w_key_pos.shape[1]
    ends = dict.fromkeys(("w_qry", "w_key", "u", "v"), (0, more))
    ends |= {"w_key_pos": (0, 0, 0, more), "w_val": (), "w_out": ()}
    return {name: nn.functional.pad(getattr(layer, name).detach(), n) for name, n in ends.items()}


def _added(
    kept: dict[str, Tensor], heads: int, position: str, generator: torch.Generator | None
) -> dict[str, Tensor]:
    """The tensors of added heads beside the kept ones.  With free positions the first D_p of the
    D_k components are for r_δ, and the content's matrices are zero there.

    Matrices are drawn by Xavier's rule; scores of content have about the size 1 for inputs of the
    size 1, as if divided by √D_k.
    """
    added = {name: rows.new_zeros(heads, *rows.shape[1:]) for name, rows in kept.items()}
    for name in ("w_qry", "w_key", "w_val"):
        for matrix in added[name].flatten(0, -3):
            nn.init.xavier_uniform_(matrix, generator=generator)
    _, key_dim, pos_dim = kept["w_key_pos"].shape
    if position == "none":
        pos_dim = 0
    added["w_qry"] /= sqrt(key_dim - pos_dim)
    for name in ("w_qry", "w_key"):
        added[name][..., :pos_dim] = 0
    added["w_key_pos"][:, range(pos_dim), range(pos_dim)] = 1
    return added
