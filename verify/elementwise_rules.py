"""How an error passes operations that take numbers one by one, or choose and move them.

Each rule states its inequality: e bounds |b − a|, m bounds |a|, and the result bounds |f̃(b) − f̃(a)|, where f̃ is f as
evaluated, once on a and once on b, each time with its own rounding.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from verify.balls import Ball, Call, NoBound, above, up

# ---- numbers moved or chosen ---------------------------------------------------------------------------------------------


def moved(call: Call) -> Any:
    """Data movement: f takes every number from one place, and so does its error; nothing is rounded."""
    (low, high), error = call.on_ends(), call.on(_error)
    if isinstance(error, Tensor):
        return Ball(low, high, error)
    return type(error)(Ball(*parts) for parts in zip(low, high, error, strict=True))


def largest(call: Call) -> Ball:
    """The greatest of a window: |max b − max a| ≤ max e over the window; nothing is rounded."""
    if not isinstance(call.output, Tensor):
        raise NoBound("it returns indices too")
    return Ball(*call.on_ends(), call.on(_error))


def pooled(call: Call) -> Ball:
    """As :func:`largest`, over windows none of which is empty: what is the same at all places stays what it is."""
    return call.ball if call.ball.even and isinstance(call.output, Tensor) else largest(call)


def least(call: Call) -> Ball:
    """The least: |min b − min a| ≤ max e, over the same window."""
    error = -call.on(lambda ball: -ball.error)
    return Ball(*call.on_ends(), error)


def unless_training(call: Call) -> Ball:
    """Dropout in eval mode moves nothing."""
    if call.get(2, "training", call.get(2, "train", True)):
        raise NoBound("it draws at random in training mode")
    return call.ball


def padded(call: Call) -> Ball:
    """Padding: with a constant, where the error is 0; or with numbers of the input, and their errors."""
    ball, widths, mode, value = call.ball, call.get(1, "pad"), call.get(2, "mode", "constant"), call.get(3, "value")
    if mode != "constant":
        return moved(call)
    fill = _stored(0.0 if value is None else value, call)
    return Ball(F.pad(ball.low, widths, value=fill), F.pad(ball.high, widths, value=fill), F.pad(ball.error, widths))


# ---- sums, products, quotients ------------------------------------------------------------------------------------------


def added(call: Call) -> Ball:
    """a + α·a': e + |α|·e', and roundings of |a| + |α||a'|: of a Python number, of α, of the product, of the sum."""
    first, second = _operands(call)
    return _sum(first, second, call)


def subtracted_from(call: Call) -> Ball:
    """a' − α·a, torch's ``rsub(a, a')``: as :func:`added`, but α scales the first operand."""
    first, second = _operands(call)
    return _sum(second, first, call)


def _sum(plain: Ball, scaled: Ball, call: Call) -> Ball:
    scale = abs(float(call.kwargs.get("alpha", 1)))
    moved = torch.add(plain.error, scaled.error, alpha=scale)
    size = torch.add(plain.size, scaled.size, alpha=scale)
    # What underflows in α is multiplied by an operand; where α is 1, nothing is multiplied.
    return call.affine(moved, size, 4, underflow=4 if scale == 1 else 4 + plain.reach + scaled.reach)


def multiplied(call: Call) -> Ball:
    """a·a': |bb' − aa'| ≤ |a|e' + |a'|e + ee', and the product's rounding; a Python number is rounded first."""
    first, second = _operands(call)
    moved = first.size * second.error + second.size * first.error + first.error * second.error
    return call.affine(moved, first.size * second.size, 2, underflow=2 + first.reach + second.reach)


def divided(call: Call) -> Ball:
    """a/c by a constant c: e/|c|, and the quotient's rounding; a Python number is rounded first."""
    ball, divisor = _operands(call)
    least = float(divisor.size.min()) if divisor.size.numel() else 1.0
    if call.kwargs.get("rounding_mode") is not None or isinstance(call.get(1, "other"), Ball):
        raise NoBound("only division by a constant is covered")
    if not least > 2 * max(call.fmt.eta / call.fmt.u, call.fmt.stored_eta / (call.fmt.stored_u or 1)):
        raise NoBound(f"it divides by {least:.3g}")
    return call.affine(ball.error / divisor.size, ball.size / divisor.size, 3, underflow=3 + ball.reach)


def negated(call: Call) -> Ball:
    """−a: the same error; nothing is rounded."""
    ball = call.ball
    return Ball(-ball.high, -ball.low, ball.error)


def absolute(call: Call) -> Ball:
    """|a|: ||b| − |a|| ≤ |b − a|; nothing is rounded."""
    ball = call.ball
    return Ball(torch.zeros_like(ball.size), ball.size, ball.error)


def greater_of_two(call: Call) -> Ball:
    """max(a, a') or min(a, a'): at most max(e, e'); nothing is rounded."""
    first, second = _operands(call)
    return Ball.around_zero(torch.maximum(first.size, second.size), torch.maximum(first.error, second.error))


# ---- activation functions -----------------------------------------------------------------------------------------------


def clipped(call: Call, low: Any, high: Any) -> Ball:
    """min(max(a, L), U), nothing rounded.

    |f(b) − f(a)| ≤ e; and both lie in [L, U], neither above max(L, a + e) nor below min(U, a − e), so the difference is at
    most a + e − L and at most U − a + e, or 0 where these are negative.
    """
    for bound in (low, high):
        if not (bound is None or isinstance(bound, int | float)):
            raise NoBound("its limits are no plain numbers")
    least = -math.inf if low is None else _stored(low, call)
    most = math.inf if high is None else _stored(high, call)
    if not least <= most:
        raise NoBound(f"its limits {least:g} and {most:g} are no interval")
    ball = call.ball
    error = ball.error
    if math.isfinite(least):
        error = torch.minimum(error, above(ball.high, ball.error, -least).clamp_(min=0))
    if math.isfinite(most):
        error = torch.minimum(error, above(-ball.low, ball.error, most).clamp_(min=0))
    low, high = call.ends(lambda end: end.clamp(least, most))
    return Ball(low, high, error)


@dataclass(frozen=True)
class Curve:
    """An activation function by what bounds it.

    Attributes:
        slope: |f'| is at most this everywhere.
        slope_below: |f'| is at most this where the argument is not positive.
        start: |f(0)|.
        cap: |f| is at most this.
    """

    slope: float
    slope_below: float
    start: float = 0.0
    cap: float = math.inf


CURVES = {
    "sigmoid": Curve(0.25, 0.25, 0.5, 1.0),  # f' = f(1 − f)
    "tanh": Curve(1.0, 1.0, 0.0, 1.0),  # f' = 1 − f²
    "silu": Curve(1.0999, 0.5),  # f' = σ(1 + x(1 − σ)), greatest 1.09984 at x = 2.3994; in [−0.0999, ½] below 0
    "gelu": Curve(1.129, 0.5),  # f' = Φ + xφ, greatest 1.128905 at x = √2; in [−0.1290, ½] below 0
    "gelu of tanh": Curve(1.13, 0.5),  # greatest 1.12930 at 1.4207; in [−0.1293, ½] below 0
    "mish": Curve(1.0885, 0.6001),  # greatest 1.08842 at 1.4907; in [−0.1131, 0.6] below 0
    "hardswish": Curve(1.5, 0.5),  # x(x + 3)/6 between −3 and 3
    "hardsigmoid": Curve(0.16667, 0.16667, 0.5, 1.0),
    "selu": Curve(1.7581, 1.7581),  # 1.0507·1.67327 below 0, 1.0507 above
}
"""The decimals are rounded up; ``tests/test_propagation.py`` holds each against the function on a fine grid."""

ULPS = 16
"""An activation function is taken to be evaluated to within 16 units of rounding of the largest number on the way: assumed."""


def curved(call: Call, curve: Curve) -> Ball:
    """A function of bounded slope: L·e, L the bound where the argument can be, and twice the assumed evaluation error.

    The error of evaluation is held against |f(0)| + L|a|, the largest number on the way, not against |f(a)|: where a
    formula cancels (1 + erf), it is the larger that counts.
    """
    ball = call.ball
    slope = _steepest(ball, curve.slope, curve.slope_below)
    span = 2 * curve.cap if math.isfinite(curve.cap) else math.inf
    error = torch.minimum(slope * ball.error, torch.full_like(ball.error, span))
    top = max(curve.slope, 1.0)
    here = call.rounding(up(curve.start + top * ball.size), ULPS)
    there = call.rounding(up(curve.start + top * ball.reach), ULPS)
    call.must_not_overflow(4 * top * ball.reach + 8)
    size = up(curve.start + curve.slope * ball.size).clamp(max=curve.cap)
    return Ball.around_zero(up(size + here), up(error + here + there))


def leaky(call: Call, slope: Any) -> Ball:
    """a where a > 0, else s·a: max(1, |s|)·e, or |s|·e where the argument is not positive; s and the product are rounded."""
    if not isinstance(slope, int | float):
        raise NoBound("its slope is no plain number")
    ball, below = call.ball, abs(float(slope))
    steepest = _steepest(ball, max(1.0, below), below)
    return call.affine(steepest * ball.error, max(1.0, below) * ball.size, 2, underflow=2 + ball.reach)


def exponential_linear(call: Call) -> Ball:
    """elu: slope 1 above 0, at most |α| below."""
    alpha = call.get(1, "alpha", 1.0)
    if not isinstance(alpha, int | float):
        raise NoBound("its alpha is no plain number")
    return curved(call, Curve(max(1.0, abs(float(alpha))), abs(float(alpha))))


def softmax(call: Call) -> Ball:
    """Σ_j |∂p_i/∂x_j| = 2p_i(1 − p_i) ≤ ½: at most half the greatest e along the axis.

    Evaluation: exponents err by u·t, which changes e^−t by at most u, in the n terms of the sum too; then n additions, and
    the assumed error of the exponential: 2(n + 16) units of 1 cover it.
    """
    ball, dim = _axis(call)
    one = torch.ones_like(ball.error)
    call.must_not_overflow(2 * ball.reach)
    slack = call.rounding(one, 2 * (ball.error.shape[dim] + ULPS))
    error = torch.minimum(ball.error.amax(dim, keepdim=True) / 2, one)
    return Ball(torch.zeros_like(one), up(one + slack), up(error + 2 * slack))


def log_softmax(call: Call) -> Ball:
    """Σ_j |∂ log p_i/∂x_j| = 2(1 − p_i) ≤ 2: at most twice the greatest e along the axis; evaluated as in :func:`softmax`."""
    ball, dim = _axis(call)
    count = ball.error.shape[dim]
    size = up(2 * ball.reach.amax(dim, keepdim=True).expand_as(ball.error) + math.log(count) + 1)
    call.must_not_overflow(2 * size)
    slack = call.rounding(size, 2 * (count + ULPS))
    error = 2 * ball.error.amax(dim, keepdim=True).expand_as(ball.error)
    return Ball.around_zero(up(size + slack), up(error + 2 * slack))


# ---- parts ---------------------------------------------------------------------------------------------------------------


def _error(ball: Ball) -> Tensor:
    return ball.error


def _steepest(ball: Ball, slope: float, slope_below: float) -> Tensor:
    """The slope of a function between a and b: the second number where both are certainly not positive."""
    everywhere = torch.full_like(ball.error, slope)
    return torch.where(above(ball.high, ball.error) <= 0, torch.full_like(ball.error, slope_below), everywhere)


def _axis(call: Call) -> tuple[Ball, int]:
    """The argument of a softmax and its axis."""
    dim = call.get(1, "dim")
    if not isinstance(dim, int) or call.kwargs.get("dtype") is not None:
        raise NoBound("without an axis, or into another number format")
    return call.ball, dim


def _stored(number: float, call: Call) -> float:
    """A Python number as torch stores it beside the activations."""
    return float(torch.tensor(number, dtype=getattr(torch, call.fmt.name)))


def _operands(call: Call) -> tuple[Ball, Ball]:
    """Two arguments, each an activation, a constant tensor or a number."""

    def operand(value: Any) -> Ball:
        if isinstance(value, Ball):
            return value
        if isinstance(value, Tensor) and not value.is_complex():
            return Ball.exact(value)
        if isinstance(value, int | float):
            return Ball.exact(torch.tensor(float(value), dtype=torch.float64))
        raise NoBound(f"one operand is a {type(value).__name__}")

    if len(call.args) > 2:
        raise NoBound("more than two operands")
    return operand(call.get(0, "input")), operand(call.get(1, "other"))
