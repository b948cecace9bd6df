"""The adjoint of a strided map, by polyphase decomposition: one forward map of stride 1 for each phase of the stride."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from construct.execution.kernels.problem import FORWARD, Problem, Task
from construct.execution.kernels.windows import OTHER, Shifts, phases


class Polyphase:
    """The adjoint, one phase of the stride at a time: only some heads see the inputs t ≡ r modulo s, and for these the adjoint
    is ``forward`` with stride 1 and flipped offsets, from outputs to inputs.

    Args:
        problem: an adjoint.
        select: chooses how to compute a phase.
    """

    def __init__(self, problem: Problem, select: Callable[[Problem], Task]):
        self.problem, shifts = problem, problem.shifts
        self.parts: list[tuple[tuple[slice, ...], Task | None]] = []
        for phase, (places, size) in phases(shifts.step, shifts.size).items():
            pairs = [
                (tuple((r - e) // s for r, e, s in zip(phase, offset, shifts.step, strict=True)), head)
                for offset, head in zip(shifts.offsets, problem.heads, strict=True)
                if all((r - e) % s == 0 for r, e, s in zip(phase, offset, shifts.step, strict=True))
            ]
            task = None
            if pairs:
                phase_shifts = Shifts(tuple(offset for offset, _ in pairs), (1,) * len(phase), shifts.output, size)
                part = replace(
                    problem,
                    kind=FORWARD,
                    shifts=phase_shifts,
                    heads=tuple(head for _, head in pairs),
                    channels=problem.width,
                    width=problem.channels,
                    x_layout=problem.y_layout,
                    y_layout=problem.x_layout if max(shifts.step) == 1 else OTHER,
                )
                task = select(part)
            self.parts.append((places, task))
        self.workspace = max((task.workspace for _, task in self.parts if task is not None), default=0)

    def run(self, first: Tensor, second: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        """As :class:`~construct.execution.kernels.problem.Task`."""
        if max(self.problem.shifts.step) == 1 and out is None:
            ((_, task),) = self.parts
            if task is not None:
                return task.run(first, second.mT, bias, None)
        out = self.problem.new(first) if out is None else out
        for places, task in self.parts:
            part = out[(slice(None), slice(None), *places)]
            if task is None:
                fill(part, bias)
            else:
                task.run(first, second.mT, bias, part)
        return out


def fill(out: Tensor, bias: Tensor | None) -> None:
    """Fill images with the bias."""
    if bias is None:
        out.zero_()
    else:
        out.copy_(bias.view(-1, *(1,) * (out.dim() - 2)))
