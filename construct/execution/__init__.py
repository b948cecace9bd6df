"""How Eq. 3 is evaluated.  One file an execution, one signature; this module makes the automatic choice.

A new execution is a module here that enters itself into ``EXECUTIONS``; the contract test then runs it over every geometry.
"""

from torch import Tensor

from construct.attention import EXECUTIONS, MHSA, Execution
from construct.execution import axial, chunked, dense, traced
from construct.execution.plan import axial_plan
from construct.tokens import TokenGrid

DENSE_BYTES = 2**28
"""Up to this much (256 MiB), content attention is evaluated by the paper's equations as they stand; beyond, in blocks."""


def choose(layer: MHSA, batch: int, grid: TokenGrid) -> str:
    """The execution that ``auto`` uses for this call: ``axial`` wherever attention factorises."""
    if axial_plan(layer, grid) is not None:
        return "axial"
    return "dense" if dense.memory(layer, batch, grid) <= DENSE_BYTES else "chunked"


def _run(layer: MHSA, x: Tensor, grid: TokenGrid) -> Tensor:
    plan = axial_plan(layer, grid)
    if plan is not None:
        return axial.run_plan(layer, x, grid, plan)
    return EXECUTIONS[choose(layer, len(x), grid)].run(layer, x, grid)


def _memory(layer: MHSA, batch: int, grid: TokenGrid) -> int:
    return EXECUTIONS[choose(layer, batch, grid)].memory(layer, batch, grid)


def _cost(layer: MHSA, batch: int, grid: TokenGrid) -> int:
    return EXECUTIONS[choose(layer, batch, grid)].cost(layer, batch, grid)


EXECUTIONS["auto"] = Execution(
    _run, _memory, "axial wherever attention factorises, else dense while small, else chunked", _cost
)

__all__ = ["EXECUTIONS", "axial", "choose", "chunked", "dense", "traced"]
