"""Where an activation lies in one network, and how far the other network's may be from it.

Every number below is a float64 bound that errs on the safe side: sums of non-negative terms are widened by far more than
float64 loses in them, and where two terms may cancel, by a multiple of their sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from verify.budget import WIDEN, Format
from verify.rounding import gamma

SPECK = 2.0**-1000
"""Added to a bound that is not 0: more than any product in float64 loses where it underflows."""


class NoBound(Exception):
    """An operation through which no bound can be pushed; the message says why."""


@dataclass(frozen=True)
class Ball:
    """For every element: ``low`` ≤ a ≤ ``high`` of the original network, and |b − a| ≤ ``error`` for the converted one.

    Attributes:
        low, high: equal where the activation is known.
        error: not negative.
    """

    low: Tensor
    high: Tensor
    error: Tensor

    @classmethod
    def exact(cls, value: Tensor) -> "Ball":
        """The same known numbers in both networks."""
        number = value.detach().cpu().to(torch.float64, copy=True)
        return cls(number, number, torch.zeros_like(number))

    @classmethod
    def around_zero(cls, size: Tensor, error: Tensor) -> "Ball":
        """|a| ≤ size, which is not negative."""
        ball = cls(-size, size, error)
        vars(ball)["size"] = size
        return ball

    @cached_property
    def size(self) -> Tensor:
        """|a| is at most this."""
        return torch.maximum(self.low.abs(), self.high.abs())

    @cached_property
    def reach(self) -> Tensor:
        """|a| and |b| are at most this."""
        return up(self.size + self.error)


@dataclass(frozen=True)
class Call:
    """One operation of the original network.

    Attributes:
        function: what was called.
        args, kwargs: its arguments, every activation replaced by its ball; other tensors are constants.
        output: what the original network got.
        fmt: the number format of activations and output.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    output: Any = None
    fmt: Format = field(kw_only=True)

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """One argument, wherever it stands."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    @property
    def ball(self) -> Ball:
        """The first argument.

        Raises:
            NoBound: it is no activation, or some other argument is one too.
        """
        first = self.get(0, "input")
        others = [*self.args[1:], *(value for key, value in self.kwargs.items() if key != "input")]
        if not isinstance(first, Ball) or any(isinstance(value, Ball) for value in others):
            raise NoBound("an activation stands where a constant is expected")
        return first

    def on(self, pick: Callable[[Ball], Tensor]) -> Any:
        """The same operation on other numbers: ``pick`` of every activation, and of every constant as a ball."""

        def swapped(value: Any) -> Any:
            if isinstance(value, Tensor):
                value = Ball.exact(value) if value.is_floating_point() else value.cpu()
            return pick(value).clone() if isinstance(value, Ball) else value

        args, kwargs = tree_map(swapped, (self.args, self.kwargs), is_leaf=lambda value: isinstance(value, Ball))
        return self.function(*args, **kwargs)

    def rounding(self, size: Tensor, operations: int, underflow: Any = None, stores: int = 1) -> Tensor:
        """How far an evaluation may be from the exact result: γ_n·size + n·η, and what storing in half precision adds.

        Args:
            size: the sum of |terms|.
            operations: n, how many roundings one term passes at most.
            underflow: how many η; n by default.
            stores: how often a result is rounded to the stored format, where that is shorter than the working format.
        """
        return up(self._rounding(size, operations, underflow, stores))

    def _rounding(self, size: Tensor, operations: int, underflow: Any, stores: int) -> Tensor:
        fmt = self.fmt
        total = gamma(operations, fmt.u) * size + (operations if underflow is None else underflow) * fmt.eta
        if fmt.stored_u:
            grown = (1 + fmt.stored_u) ** stores
            total = total + (grown - 1) * (size + total) + stores * fmt.stored_eta * grown
        return total

    def affine(self, moved: Tensor, size: Tensor, operations: int, underflow: Any = None, stores: int = 2) -> Ball:
        """Both networks evaluate one function that is linear but for a constant.

        |f̃(b) − f̃(a)| ≤ |f|(e) + rounding(|f|(|a|)) + rounding(|f|(|a| + e)), where |f| has the absolute coefficients.

        Args:
            moved: |f|(e), the constant left out.
            size: |f|(|a|), the constant's size included.
            operations: n, as in :meth:`rounding`.
            underflow: as in :meth:`rounding`.
            stores: as in :meth:`rounding`.
        """
        largest = size + moved
        self.must_not_overflow(largest)
        here, there = (self._rounding(of, operations, underflow, stores) for of in (size, largest))
        # All of these are sums and products of numbers that are not negative: widened once, in the end.
        return Ball.around_zero(up(size + here), up(moved + here + there))

    def must_not_overflow(self, sizes: Tensor) -> None:
        """Refuse where an intermediate as large as this, and rounding on the way, may leave the format.

        Raises:
            NoBound: it may.
        """
        largest = float(sizes.max()) if sizes.numel() else 0.0
        if not 2 * largest < self.fmt.largest:  # a NaN fails
            raise NoBound(
                f"an intermediate may reach {largest:.3g}, and the largest {self.fmt.name} is {self.fmt.largest:.3g}"
            )


def up(bound: Tensor) -> Tensor:
    """A non-negative bound, widened by more than float64 lost in working it out."""
    # Among the smallest numbers the product may not have grown; an exact 0 stays one.
    return (bound * WIDEN).add_(bound.sign(), alpha=SPECK)


def above(*terms: Tensor | float) -> Tensor:
    """The sum of a few terms that may cancel, from above."""
    total, size = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for term in terms:
        number = torch.as_tensor(term, dtype=torch.float64)
        total, size = total + number, size + number.abs()
    return total + size * 2.0**-48
