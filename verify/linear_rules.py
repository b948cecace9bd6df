"""How an error passes operations that are linear but for a constant: |f|(e), and the rounding of two evaluations.

|f| has the absolute values of f's coefficients.  Sums may be taken in any order (:mod:`verify.rounding`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from verify.balls import Ball, Call, NoBound, up
from verify.oracle import Convolution, matmul
from verify.rounding import single_sum


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
    places = (0, *range(2, ball.error.dim()))
    most = [part.amax(places, keepdim=True)[0] for part in (ball.size, ball.error)] if ball.error.numel() else [mu, mu]
    reach = up(most[0] + most[1])
    call.must_not_overflow(up((reach + mu) * torch.maximum(scale, 1 / spread.sqrt()) + reach + mu + beta))
    call.must_not_overflow(torch.maximum(spread, 1 / spread.sqrt()))
    size = (ball.size + mu).mul_(scale).add_(beta)
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
    shape, output = call.ball.shape, call.output.shape
    if len(shape) != len(output):
        raise NoBound("input and output differ in rank")
    first = 0 if len(output) == 2 else 2  # unbatched, one axis
    sizes = zip(shape[first:], output[first:], strict=True)
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
        low, high, error = (t.flatten(2)[..., flat].unflatten(2, shape) for t in (ball.low, ball.high, ball.error))
        return Ball(low, high, error)
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
        moved, size = spread(fields, (ball.error, ball.size))
        if fields.bias is not None:
            size += torch.from_numpy(np.abs(fields.bias)).reshape(-1, *(1,) * dims)
        return call.affine(moved, size, terms + 1, stores=prod(fields.kernel_size) + 2)

    return rule


def spread(fields: Convolution, parts: Sequence[Tensor], even: bool = False) -> list[Tensor]:
    """Σ|W||x| of each of some tensors of one shape, from the definition of the convolution; batched or not.

    Args:
        fields: of the convolution.
        parts: each (N, D_in, *size), or without the first axis.
        even: whether each is (N, D_in, 1, …, 1), the same at all places of some size: then so are the results, as large as an
            output is that sees all taps it may.
    """
    batched = parts[0].dim() == fields.weight.ndim
    together = np.concatenate([(x if batched else x[None]).numpy() for x in parts])  # one pass over the weights
    spread_over = _spread_evenly(fields, together) if even else _in_single(fields, together)
    found = torch.from_numpy(fields.spread(together) if spread_over is None else spread_over)
    return [y if batched else y[0] for y in found.split([len(x) if batched else 1 for x in parts])]


def _in_single(fields: Convolution, x: np.ndarray) -> np.ndarray | None:
    """Σ|W|x from above, summed in float32, twice as fast; None where W is not float32, or that may overflow or says little.

    A number x ≥ 0 is at most (y + η/2)/(1 − u), y the nearest float32, so that Σ|W|x ≤ (Σ|W|y)(1 + 2u) + ηΣ|W|.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        weight, y = fields.weight.astype(np.float32), x.astype(np.float32)
    if not np.array_equal(weight, fields.weight):
        return None
    found = single_sum(replace(fields, weight=weight, bias=None), y)
    if found is not None:
        single = np.finfo(np.float32)
        found *= 1 + float(single.eps)
        found += float(single.smallest_subnormal) * float(fields.sizes.max(initial=0.0))
    return found


def _spread_evenly(fields: Convolution, x: np.ndarray) -> np.ndarray:
    """The most that any output may be of an input x ≥ 0 that is the same at all places: (N, D_in, 1, …) → (N, D_out, 1, …).

    An output adds up W_j x over some of the taps, each once, and as no term is negative, no more than over all of them.  Of a
    transposed convolution it meets such taps alone whose places dil·j leave one remainder by the stride.
    """
    sizes, dims = np.abs(fields.matrices), len(fields.kernel_size)
    alike: dict[tuple[int, ...], list[np.ndarray]] = {}
    for tap in product(*map(range, fields.kernel_size)):
        places = zip(tap, fields.dilation, fields.stride, strict=True)
        met = tuple(dil * j % s for j, dil, s in places) if fields.transposed else ()
        alike.setdefault(met, []).append(sizes[tap])
    columns = x.reshape(len(x), fields.groups, -1, 1)
    sums = (np.sum(taps, axis=0) for taps in alike.values())
    found = [matmul(np.swapaxes(total, 1, 2) if fields.transposed else total, columns) for total in sums]
    return np.maximum.reduce(found).reshape(len(x), -1, *(1,) * dims)


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
    ball = call.ball
    call.must_not_overflow(terms * ball.reach)
    if ball.even:  # a mean of what is the same at all places, and of zeros, is no larger
        return call.affine(ball.error, ball.size, terms + 3)
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
