"""How an error passes operations that are linear but for a constant: |f|(e), and the rounding of two evaluations.

|f| has the absolute values of f's coefficients.  Sums may be taken in any order (:mod:`verify.rounding`).
"""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from verify.balls import Ball, Call, NoBound, up
from verify.oracle import Convolution


def dense(call: Call) -> Ball:
    """Wa + b: |W|e; a term is multiplied once and added to D_in others at most, the bias among them."""
    ball, weight, bias = call.ball, constant(call.get(1, "weight")), call.get(2, "bias")
    size = F.linear(ball.size, weight.abs(), None if bias is None else constant(bias).abs())
    return call.affine(F.linear(ball.error, weight.abs()), size, weight.shape[-1] + 1)


def batch_norm(call: Call) -> Ball:
    """(a − μ)·g + β with g = γ/√(σ² + ε), in eval mode: |g|e.

    Evaluated as that, or as a·g + (β − μg): g takes 5 roundings (ε, sum, root, reciprocal, product), a term at most 3 more;
    an underflow in g is multiplied by |a| + |μ|, one in (a − μ)/√(σ² + ε) by |γ|.  Counted: 12.
    """
    ball, mean, variance = call.ball, call.get(1, "running_mean"), call.get(2, "running_var")
    if call.get(5, "training", False) or mean is None or variance is None:
        raise NoBound("it normalises by statistics of the batch (training mode, or no running statistics)")
    gamma, beta, eps = call.get(3, "weight"), call.get(4, "bias"), float(call.get(7, "eps", 1e-5))

    def along(values: Any, default: float) -> Tensor:
        row = torch.full_like(constant(mean), default) if values is None else constant(values)
        return row.reshape(-1, *(1,) * (ball.error.dim() - 2))

    mu, spread = along(mean, 0.0).abs(), along(variance, 1.0) + eps
    gamma, beta = along(gamma, 1.0).abs(), along(beta, 0.0).abs()
    least = float(spread.min()) if spread.numel() else 1.0
    if not least > 2.0**10 * call.fmt.eta / call.fmt.u or not bool((along(variance, 1.0) >= 0).all()):
        raise NoBound(f"a running variance is {least - eps:.3g}, and eps {eps:g}")
    scale = gamma / spread.sqrt()
    # What is the same all over a channel is worked out once a channel.
    reach = ball.reach.amax((0, *range(2, ball.error.dim())), keepdim=True)[0] if ball.reach.numel() else mu
    call.must_not_overflow(up((reach + mu) * torch.maximum(scale, 1 / spread.sqrt()) + reach + mu + beta))
    call.must_not_overflow(torch.maximum(spread, 1 / spread.sqrt()))
    size = scale * (ball.size + mu) + beta
    return call.affine(scale * ball.error, size, 12, underflow=up(8 + 2 * (reach + mu + gamma)))


def averaged(dims: int) -> Callable[[Call], Ball]:
    """The rule of average pooling over windows of ``dims`` axes: the average of e; K terms, and a quotient."""

    def rule(call: Call) -> Ball:
        kernel = call.get(1, "kernel_size")
        if call.get(6, "divisor_override") is not None:
            raise NoBound("it has a divisor of its own")
        return _mean(
            call, prod(kernel) if isinstance(kernel, tuple | list) and len(kernel) > 1 else _one(kernel) ** dims
        )

    return rule


def averaged_adaptively(call: Call) -> Ball:
    """Adaptive average pooling: the average of e; a window spans at most ⌈n/o⌉ + 1 places an axis."""
    sizes = zip(call.ball.error.shape[2:], call.output.shape[2:], strict=True)
    if call.ball.error.dim() != call.output.dim():
        raise NoBound("input and output differ in rank")
    if call.output.dim() == 2:  # unbatched, one axis
        sizes = zip(call.ball.error.shape, call.output.shape, strict=True)
    return _mean(call, prod(ceil(n / max(o, 1)) + 1 for n, o in sizes))


def mean(call: Call) -> Ball:
    """The mean along axes: the mean of e."""
    return _mean(call, _terms(call))


def total(call: Call) -> Ball:
    """The sum along axes: the sum of e; a term passes fewer additions than there are terms."""
    return call.affine(call.on(lambda b: b.error), call.on(lambda b: b.size), _terms(call))


def interpolated(call: Call) -> Ball:
    """Upsampling.  Nearest: every number is moved, and its error with it.

    Linear, bilinear, trilinear: f is a weighted mean whose weights follow a place x in the input.  torch works x out in the
    working format, to within 4u·N of N places along an axis; f changes by at most 2·max|a| a place, and is continuous.  So
    f̃ errs by at most D·8uN·max|a|, max over the places of the channel, and by the rounding of a sum of 2^D weighted terms.
    """
    ball, mode = call.ball, call.get(3, "mode", "nearest")
    if call.get(6, "antialias", False):
        raise NoBound("antialiasing is not covered")
    spatial = tuple(ball.error.shape[2:])
    if mode in ("nearest", "nearest-exact"):
        # The very same choice: where does each number of this format come from?
        working = torch.float64 if call.fmt.name == "float64" else torch.float32
        if prod(spatial) > 2**24:
            raise NoBound("too many places to number")
        places = torch.arange(prod(spatial), dtype=working).reshape(1, 1, *spatial)
        args, kwargs = (places, *call.args[1:]), {k: v for k, v in call.kwargs.items() if k != "input"}
        source = call.function(*args, **kwargs)
        flat, shape = source.long().flatten(), source.shape[2:]
        return Ball(*(t.flatten(2)[..., flat].unflatten(2, shape) for t in (ball.low, ball.high, ball.error)))
    if mode not in ("linear", "bilinear", "trilinear"):
        raise NoBound(f"interpolation mode {mode} is not covered")
    dims, axes = len(spatial), tuple(range(2, ball.error.dim()))
    shift = 8 * (max(call.fmt.u, 2.0**-53) + 2.0**-53) * sum(spatial)
    call.must_not_overflow(4 * ball.reach)

    def displaced(size: Tensor) -> Tensor:
        return shift * size.amax(axes, keepdim=True)

    error = call.on(lambda b: b.error) + displaced(ball.error)
    size = ball.reach.amax(axes, keepdim=True).expand_as(error)
    slack = call.rounding(size, 4 * dims + 2**dims + 4, stores=2) + displaced(size)
    return Ball.around_zero(up(size + slack), up(error + 2 * slack))


def convolved(dims: int, transposed: bool) -> Callable[[Call], Ball]:
    """The rule of a convolution that both networks evaluate as such: |W|e, D_in/groups·ΠK terms and the bias."""

    def rule(call: Call) -> Ball:
        ball, weight, bias = call.ball, constant(call.get(1, "weight")), call.get(2, "bias")
        last = (call.get(5, "output_padding", 0), call.get(7, "dilation", 1), call.get(6, "groups", 1))
        extra, dilation, groups = last if transposed else (0, call.get(5, "dilation", 1), call.get(6, "groups", 1))
        fields = Convolution(
            weight=weight.numpy(),
            bias=None if bias is None else constant(bias).numpy(),
            stride=_vector(call.get(3, "stride", 1), dims),
            padding=_vector(call.get(4, "padding", 0), dims),
            dilation=_vector(dilation, dims),
            groups=groups,
            transposed=transposed,
            output_padding=_vector(extra, dims),
        )
        terms = weight[:, 0].numel() // groups if transposed else weight[0].numel()
        moved, size = spread(fields, fields.weight, ball.error), spread(fields, fields.weight, ball.size, fields.bias)
        return call.affine(moved, size, terms + 1, stores=prod(fields.kernel_size) + 2)

    return rule


def spread(fields: Convolution, weight: np.ndarray, x: Tensor, bias: np.ndarray | None = None) -> Tensor:
    """Σ|W||x| + |b|, from the definition of the convolution; batched or not."""
    absolute = replace(fields, weight=np.abs(weight), bias=None if bias is None else np.abs(bias))
    batched = x.dim() == weight.ndim
    y = torch.from_numpy(absolute((x if batched else x[None]).numpy()))
    return y if batched else y[0]


def constant(value: Any) -> Tensor:
    """A constant tensor as float64.

    Raises:
        NoBound: it is no constant.
    """
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise NoBound("its weights are no constants")
    return value.detach().cpu().double()


def _mean(call: Call, terms: int) -> Ball:
    if call.kwargs.get("dtype") is not None:
        raise NoBound("into another number format")
    call.must_not_overflow(terms * call.ball.reach)
    return call.affine(call.on(lambda b: b.error), call.on(lambda b: b.size), terms + 3)


def _terms(call: Call) -> int:
    """How many numbers go into each output."""
    if call.kwargs.get("dtype") is not None:
        raise NoBound("into another number format")
    return -(-call.ball.error.numel() // max(call.output.numel(), 1))


def _one(kernel: Any) -> int:
    return kernel if isinstance(kernel, int) else kernel[0]


def _vector(value: Any, dims: int) -> Any:
    """As torch reads it: one number stands for all axes."""
    if isinstance(value, tuple | list):
        return tuple(value) if len(value) == dims else tuple(value) * dims
    return value if isinstance(value, str) else (value,) * dims
