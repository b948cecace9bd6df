"""Times calls that take turns in one process, so that a slowdown of the machine affects all of them."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from construct.execution.shifts.gemm import product

Call = Callable[[], object]
ROUNDS = 9
AT_LEAST = 2e-3
"""The least seconds of a measurement: shorter calls are repeated."""


@dataclass(frozen=True)
class Times:
    """Seconds of one call, one number per round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


def quartiles(numbers: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile."""
    first, _, third = statistics.quantiles(numbers, n=4, method="inclusive") if len(numbers) > 1 else (*numbers,) * 3
    return first, third


def clock_of(device: torch.device) -> tuple[Callable[[], float], str]:
    """Processor time if one thread does the work, else wall-clock time; and its name."""
    if device.type == "cpu" and torch.get_num_threads() == 1:
        return time.process_time, "processor time"
    return time.perf_counter, "wall-clock time"


def interleaved(device: torch.device, *calls: Call, rounds: int = ROUNDS) -> list[Times]:
    """Run every call once per round, in turn; two warm-up rounds are not counted."""
    clock, _ = clock_of(device)
    measured: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds + 2):
        for call, times in zip(calls, measured, strict=True):
            repeat = max(1, min(50, int(AT_LEAST / max(times[-1], 1e-6)))) if times else 1
            wait(device)
            started = clock()
            for _ in range(repeat):
                call()
            wait(device)
            times.append((clock() - started) / repeat)
    return [Times(tuple(times[2:])) for times in measured]


def wait(device: torch.device) -> None:
    """Wait until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()


class Floor:
    """A lower bound on a call's time: its arithmetic at the rate of a large product, its memory traffic at that of a copy.

    Both are measured in this process: the product first, by the faster of two libraries, and on demand a copy of just as many
    bytes, since caches are faster.
    """

    def __init__(self, device: torch.device):
        self.device = device
        a = torch.randn(1024, 1024, device=device)
        libraries = interleaved(device, lambda: a @ a, lambda: product(a, a))
        self.rate = 2 * 1024**3 / min(seconds for library in libraries for seconds in library.rounds)
        self.copies: dict[int, float] = {}

    def __call__(self, multiplications: int, numbers: int) -> float:
        """The least seconds for this many float32 multiplications and additions, with this many numbers read or written."""
        size = 1 << max(10, (numbers // 2 - 1).bit_length())
        if size not in self.copies:
            source, target = (torch.zeros(size, device=self.device) for _ in range(2))
            (times,) = interleaved(self.device, lambda: target.copy_(source))
            self.copies[size] = min(times.rounds) / size
        return max(2 * multiplications / self.rate, self.copies[size] * numbers / 2)
