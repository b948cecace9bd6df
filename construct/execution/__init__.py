"""How Eq. 3 is evaluated: one file per execution; here are the table of executions and the automatic choice.

To add an execution, add a file here and a line in ``EXECUTIONS``; the contract test then runs it on every geometry.
"""

from torch import Tensor

from construct.execution import axial, dense
from construct.execution.plan import axial_plan
from construct.execution.protocol import Execution, Layer
from construct.tokens import TokenGrid

SMALL_BYTES = 2**26
"""Up to this size (64 MiB), ``dense`` is about the fastest execution of attention that does not factorise."""


def choose(layer: Layer, batch: int, grid: TokenGrid) -> str:
    """The execution that ``auto`` uses for this call: ``axial``, but ``dense`` for small attention that does not factorise."""
    if axial_plan(layer, grid) is not None:
        return "axial"
    return "dense" if dense.memory(layer, batch, grid) <= SMALL_BYTES else "axial"


def _run(layer: Layer, x: Tensor, grid: TokenGrid) -> Tensor:
    plan = axial_plan(layer, grid)
    if plan is not None:
        return axial.run_plan(layer, x, grid, plan, _run)
    return EXECUTIONS[choose(layer, len(x), grid)].run(layer, x, grid)


def _memory(layer: Layer, batch: int, grid: TokenGrid) -> int:
    return EXECUTIONS[choose(layer, batch, grid)].memory(layer, batch, grid)


def _cost(layer: Layer, batch: int, grid: TokenGrid) -> int:
    return EXECUTIONS[choose(layer, batch, grid)].cost(layer, batch, grid)


EXECUTIONS: dict[str, Execution] = {
    "dense": dense.EXECUTION,
    "axial": axial.EXECUTION,
    "auto": Execution(_run, _memory, "axial, but dense for small attention that does not factorise", _cost, choose),
}
"""The executions by name."""


def explained(layer: Layer, batch: int, grid: TokenGrid) -> str:
    """One line per execution: multiplications, memory beyond the input, and a description; for ``auto``, what it picks."""
    rows = []
    for name, execution in EXECUTIONS.items():
        cost, memory = (count(layer, batch, grid) for count in (execution.cost, execution.memory))
        picked = f"{execution.picks(layer, batch, grid)} here: " if execution.picks else ""
        rows.append(f"{name:8s} {cost:10.2g} multiplications  {memory / 2**20:10.4g} MiB  {picked}{execution.meaning}")
    return "\n".join(rows)


def execution_named(name: str) -> Execution:
    """Look up an execution in :data:`EXECUTIONS`.

    Raises:
        ValueError: no execution has this name.
    """
    if name not in EXECUTIONS:
        raise ValueError(f"no execution {name!r}; there are {', '.join(EXECUTIONS)}")
    return EXECUTIONS[name]
