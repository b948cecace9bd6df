"""How Eq. 3 is evaluated: one file an execution, and here the table of all and the automatic choice.

A new execution is a file here and a line in ``EXECUTIONS``; the contract test then runs it over every geometry.
"""

from torch import Tensor

from construct.execution import axial, chunked, dense, sdpa
from construct.execution.plan import axial_plan
from construct.execution.protocol import Execution, Layer
from construct.execution.transforms import transformed
from construct.tokens import TokenGrid

SMALL_BYTES = 2**26
"""Up to this much (64 MiB), the paper's equations as they stand are about the quickest for what does not factorise."""
DENSE_BYTES = 2**28
"""Up to this much (256 MiB), they are taken where ``sdpa`` would be too coarse; beyond, blocks of them."""


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
    except sdpa.Coarse:  # for this content, which nothing but the call itself can tell
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
"""By name."""


def execution_named(name: str) -> Execution:
    """The entry of :data:`EXECUTIONS`.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in EXECUTIONS:
        raise ValueError(f"no execution {name!r}; there are {', '.join(EXECUTIONS)}")
    return EXECUTIONS[name]
