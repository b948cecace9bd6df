"""Which rule covers which function of torch, and which functions tell nothing of the numbers."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from verify import elementwise_rules as elementwise
from verify import linear_rules as linear
from verify.balls import Call

Rule = Callable[[Call], Any]
HOMES = (torch, Tensor, F)

MOVES = """
    alias_copy broadcast_to cat channel_shuffle chunk clone concat concatenate contiguous detach expand expand_as flatten flip
    fliplr flipud __getitem__ hsplit index_select moveaxis movedim narrow permute pixel_shuffle pixel_unshuffle ravel repeat
    reshape reshape_as roll rot90 select split squeeze stack swapaxes swapdims t tensor_split tile transpose unbind unflatten
    unsqueeze view view_as vsplit
""".split()
"""Each takes every number from one place of an input."""

IN_PLACE = frozenset(
    """
    add_ sub_ mul_ div_ true_divide_ neg_ abs_ relu_ sigmoid_ tanh_ clamp_ clip_ clamp_min_ clamp_max_
    hardtanh_ elu_ leaky_relu_ selu_ silu_ dropout_
    """.split()
)
"""The names of functions that change their first argument; others do so where ``inplace`` is true."""


def _clamped(call: Call) -> Any:
    return elementwise.clipped(call, call.get(1, "min"), call.get(2, "max"))


def _clamped_below(call: Call) -> Any:
    return elementwise.clipped(call, call.get(1, "min"), None)


def _clamped_above(call: Call) -> Any:
    return elementwise.clipped(call, None, call.get(1, "max"))


def _gelu(call: Call) -> Any:
    exact = call.kwargs.get("approximate", "none") == "none"
    return elementwise.curved(call, elementwise.CURVES["gelu" if exact else "gelu of tanh"])


def _curve(name: str) -> Rule:
    return lambda call: elementwise.curved(call, elementwise.CURVES[name])


NAMED: Mapping[str, Rule] = {
    **dict.fromkeys(MOVES, elementwise.moved),
    "amax": elementwise.largest,
    **{f"{kind}max_pool{d}d": elementwise.pooled for d in (1, 2, 3) for kind in ("", "adaptive_")},
    "amin": elementwise.least,
    "pad": elementwise.padded,
    **dict.fromkeys(
        ["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"],
        elementwise.unless_training,
    ),
    **dict.fromkeys(["add", "sub", "subtract", "add_", "sub_"], elementwise.added),
    **dict.fromkeys(["rsub", "__rsub__"], elementwise.subtracted_from),
    **dict.fromkeys(["mul", "multiply", "mul_"], elementwise.multiplied),
    **dict.fromkeys(["div", "divide", "true_divide", "div_", "true_divide_"], elementwise.divided),
    **dict.fromkeys(["neg", "negative", "neg_"], elementwise.negated),
    **dict.fromkeys(["abs", "absolute", "abs_"], elementwise.absolute),
    **dict.fromkeys(["maximum", "minimum"], elementwise.greater_of_two),
    **dict.fromkeys(["relu", "relu_"], lambda call: elementwise.clipped(call, 0.0, None)),
    "relu6": lambda call: elementwise.clipped(call, 0.0, 6.0),
    **dict.fromkeys(
        ["hardtanh", "hardtanh_"],
        lambda call: elementwise.clipped(call, call.get(1, "min_val", -1.0), call.get(2, "max_val", 1.0)),
    ),
    **dict.fromkeys(["clamp", "clip", "clamp_", "clip_"], _clamped),
    **dict.fromkeys(["clamp_min", "clamp_min_"], _clamped_below),
    **dict.fromkeys(["clamp_max", "clamp_max_"], _clamped_above),
    **dict.fromkeys(
        ["leaky_relu", "leaky_relu_"],
        lambda call: elementwise.leaky(call, call.get(1, "negative_slope", 0.01)),
    ),
    **dict.fromkeys(["elu", "elu_"], elementwise.exponential_linear),
    "gelu": _gelu,
    **{name: _curve(name) for name in elementwise.CURVES if not name.startswith("gelu")},
    **{f"{name}_": _curve(name) for name in ("sigmoid", "tanh", "selu")},
    "softmax": elementwise.softmax,
    "log_softmax": elementwise.log_softmax,
    "linear": linear.dense,
    "batch_norm": linear.batch_norm,
    **{f"avg_pool{d}d": linear.averaged(d) for d in (1, 2, 3)},
    **{f"adaptive_avg_pool{d}d": linear.averaged_adaptively for d in (1, 2, 3)},
    "mean": linear.mean,
    "sum": linear.total,
    "interpolate": linear.interpolated,
    **{f"conv{d}d": linear.convolved(d, transposed=False) for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": linear.convolved(d, transposed=True) for d in (1, 2, 3)},
}
"""Rules by the name that the function has in torch, torch.Tensor or torch.nn.functional, with the same arguments in each."""


def _found(names: Iterable[str]) -> dict[Any, str]:
    return {getattr(home, name): name for name in names for home in HOMES if hasattr(home, name)}


RULES: Mapping[Any, Rule] = {
    function: NAMED[name]
    for function, name in _found(NAMED).items()
    if function != torch.batch_norm  # its arguments stand in another order
}
"""Rules by the function itself."""

ONE_BY_ONE = """
    dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout add sub subtract add_ sub_ rsub __rsub__
    mul multiply mul_ div divide true_divide div_ true_divide_ neg negative neg_ abs absolute abs_ maximum minimum relu relu_
    relu6 hardtanh hardtanh_ clamp clip clamp_ clip_ clamp_min clamp_min_ clamp_max clamp_max_ leaky_relu leaky_relu_ elu elu_
    gelu sigmoid tanh silu mish hardswish hardsigmoid selu sigmoid_ tanh_ selu_ batch_norm
""".split()
"""Their rules take numbers one by one, or channel by channel, so that what is the same along an axis stays so."""
POOLS = {f"{kind}_pool{d}d": d for d in (1, 2, 3) for kind in ("max", "avg", "adaptive_max", "adaptive_avg")}
"""Their rules take what is the same all over a channel; over how many axes."""
EVEN: Mapping[Any, int] = {
    function: POOLS.get(name, 0) for function, name in _found([*ONE_BY_ONE, *POOLS]).items() if function in RULES
}
"""The functions whose rules take balls that hold once what is the same along an axis; those of windows, over how many axes."""

ATTRIBUTES = "shape dtype device ndim layout requires_grad is_nested is_cuda is_mps is_sparse is_quantized".split()
SILENT: frozenset[Any] = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in ATTRIBUTES),
        *_found(["size", "dim", "ndimension", "numel", "nelement", "__len__", "is_floating_point", "get_device"]),
    ]
)
"""What these return depends on no number: networks may branch on it."""


def changes_its_argument(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call works in place."""
    return getattr(function, "__name__", "") in IN_PLACE or kwargs.get("inplace") is True
