"""How Eq. 3 is evaluated.  One file an execution, one signature; this module makes the automatic choice.

A new execution is a module here that enters itself into ``EXECUTIONS``; the contract test then runs it over every geometry.
"""

from torch import Tensor

from construct.attention import EXECUTIONS, MHSA, Execution
from construct.execution import chunked, dense
from construct.tokens import TokenGrid

DENSE_BYTES = 2**28
"""Up to this much (256 MiB), ``auto`` takes the paper's equations as they stand; beyond, blocks of queries."""


def choose(layer: MHSA, batch: int, grid: TokenGrid) -> str:
    """The execution that ``auto`` uses for this call."""
    return "dense" if dense.memory(layer, batch, grid) <= DENSE_BYTES else "chunked"


def _run(layer: MHSA, tokens: Tensor, grid: TokenGrid) -> Tensor:
    return EXECUTIONS[choose(layer, len(tokens), grid)].run(layer, tokens, grid)


def _memory(layer: MHSA, batch: int, grid: TokenGrid) -> int:
    return EXECUTIONS[choose(layer, batch, grid)].memory(layer, batch, grid)


EXECUTIONS["auto"] = Execution(_run, _memory, "dense while it is small, else chunked")

__all__ = ["EXECUTIONS", "choose", "chunked", "dense"]
