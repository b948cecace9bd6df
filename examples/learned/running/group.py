"""The processes of ``torchrun`` that train a network together: each computes its part of a batch,
and one alone computes all.

Every process draws the random numbers of the whole batch and uses its part of them, so that a run
has the same numbers, up to rounding, on any number of processes, and can resume from its checkpoint
on any other number.
"""

import gc
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from examples.learned.data import BadInput

T = TypeVar("T")
KILLED = "a process of this run was killed or stopped (the same command goes on from the last checkpoint)"
_store: Any = None
"""torchrun's store, which the processes share."""


def size() -> int:
    """The number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """The number of this process; 0 writes all files."""
    return dist.get_rank() if dist.is_initialized() else 0


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Join the other processes if ``torchrun`` started this one.

    Raises:
        BadInput: another of them ended before its work was done.
    """
    global _store
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield
        return

    def stop(*_: object) -> None:
        raise BadInput(KILLED)

    before = signal.signal(signal.SIGTERM, stop)  # torchrun sends it to all when one has ended
    try:
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        _store, number, count = next(rendezvous("env://"))
        dist.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            store=dist.PrefixStore("group", _store),  # type: ignore[attr-defined]
            rank=number,
            world_size=count,
            timeout=timedelta(days=1),  # the others wait while one measures layers
        )
        yield
        signal.signal(signal.SIGTERM, before)
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # first say why this process ends
        if isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and "gloo" in str(error)
        ):
            raise BadInput(KILLED) from None
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()  # frees gloo's threads: freed only as Python exits, they abort the process


def first_to_end() -> bool:
    """Whether this process is the first to say why the run ends."""
    try:
        return _store is None or _store.add("ended", 1) == 1
    except RuntimeError:  # the process that held the store is gone
        return True


def part(whole: Tensor) -> Tensor:
    """The rows of this process."""
    return whole.tensor_split(size())[rank()]


def agreed(value: Callable[[], T]) -> T:
    """Compute a value on process 0, and return it on every process."""
    values: list[Any] = [value() if rank() == 0 else None]
    if size() > 1:
        dist.broadcast_object_list(values)
    return values[0]


def total(numbers: Sequence[float], device: torch.device) -> list[float]:
    """Sum each number over all processes."""
    sums = torch.tensor(numbers, dtype=torch.float64, device=device)
    if size() > 1:
        dist.all_reduce(sums)
    return sums.tolist()


def parallel(network: nn.Module) -> nn.Module:
    """The network, with gradients averaged over all processes."""
    return DistributedDataParallel(network) if size() > 1 else network


class Dropout(nn.Dropout):
    """Dropout that draws for the whole batch."""

    whole = 0
    """Pictures in the current batch, set at every step if there are several processes."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, …) → the same shape."""
        if not self.training or size() == 1:
            return super().forward(x)
        kept = torch.empty(self.whole, *x.shape[1:], device=x.device).bernoulli_(1 - self.p)
        return x * part(kept).div_(1 - self.p)


class Sum(torch.autograd.Function):
    """The sum over all processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Any shape → the same."""
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Any shape → the same."""
        return Sum.apply(gradients[0])


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation by the mean and variance of the whole batch; torch's own SyncBatchNorm
    needs GPUs.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, rows, columns) → the same shape."""
        if not self.training or size() == 1:
            return super().forward(input)
        x = input.double()
        count = torch.full_like(x[0, :, 0, 0], len(x) * x[0, 0].numel())
        own = torch.stack((x.sum((0, 2, 3)), x.square().sum((0, 2, 3)), count))
        sums, squares, counts = Sum.apply(own)  # type: ignore[misc]
        mean = sums / counts
        variance = squares / counts - mean.square()
        with torch.no_grad():
            self.get_buffer("num_batches_tracked").add_(1)
            for name, now in (
                ("running_mean", mean),
                ("running_var", variance * counts / (counts - 1)),
            ):
                self.get_buffer(name).lerp_(now.to(input.dtype), self.momentum or 0.1)
        scale = self.weight * (variance + self.eps).rsqrt()
        shift = self.bias - mean * scale
        return (x * scale[:, None, None] + shift[:, None, None]).to(input.dtype)
