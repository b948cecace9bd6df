"""How Eq. 3 is evaluated: one file per execution; here are the table of executions and the automatic choice.

To add an execution, add a file here and a line in ``EXECUTIONS``; the contract test then runs it on every geometry.
"""

from torch import Tensor

from construct.execution import axial, chunked, dense, sdpa
from construct.execution.plan import axial_plan
from construct.execution.protocol import Execution, Layer
from construct.execution.transforms import transformed
from construct.tokens import TokenGrid

SMALL_BYTES = 2**26
"""Up to this size (64 MiB), ``dense`` is about the fastest execution of attention that does not factorise."""
DENSE_BYTES = 2**28
"""Up to this size (256 MiB), ``dense`` is used where ``sdpa`` would be too coarse; beyond it, ``chunked``."""


def choose(layer: Layer, batch: int, grid: TokenGrid) -> str:
    """The execution that ``auto`` uses for this call: ``axial`` wherever attention factorises."""
    if axial_plan(layer, grid) is not None:
        return "axial"
    needed = dense.memory(layer, batch, grid)
    if needed > SMALL_BYTES and not transformed() and sdpa.admits(layer, grid):
        return "sdpa"
    return "dense" if needed <= DENSE_BYTES else "chunked"


def _run(layer: Layer, x: Tensor, grid: TokenGrid) -> Tensor:
    plan = axial_plan(layer, grid)
    if plan is not None:
        return axial.run_plan(layer, x, grid, plan, _run)
    try:
        return EXECUTIONS[choose(layer, len(x), grid)].run(layer, x, grid)
    except sdpa.Coarse:  # for this content, which only the call can tell
        return chunked.run(layer, x, grid)


def _memory(layer: Layer, batch: int, grid: TokenGrid) -> int:
    return EXECUTIONS[choose(layer, batch, grid)].memory(layer, batch, grid)


def _cost(layer: Layer, batch: int, grid: TokenGrid) -> int:
    return EXECUTIONS[choose(layer, batch, grid)].cost(layer, batch, grid)


EXECUTIONS: dict[str, Execution] = {
    "dense": dense.EXECUTION,
    "chunked": chunked.EXECUTION,
    "axial": axial.EXECUTION,
    "sdpa": sdpa.EXECUTION,
    "auto": Execution(
        _run,
        _memory,
        "axial wherever attention factorises, else dense while small, else sdpa, or chunked where that is too coarse",
        _cost,
        choose,
    ),
}
"""The executions by name."""


def explained(layer: Layer, batch: int, grid: TokenGrid) -> str:
    """One line per execution: multiplications, memory beyond the input, and a description; for ``auto``, what it picks."""
    rows = []
    for name, execution in EXECUTIONS.items():
        refusal = execution.refuses(layer)
        if refusal is not None:
            rows.append(f"{name:8s} cannot run this layer: {refusal}")
            continue
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
