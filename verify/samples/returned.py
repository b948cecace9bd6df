"""What a network returns, laid out as one list: tensors, and plain values that are the same for both networks or none are."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def laid_out(output: Any) -> tuple[list[Any], str | None]:
    """Every tensor and every plain value in what a network returns, in order.

    Returns:
        The list; and why no bound can speak of the whole of it: something that is not looked into, or no tensor at all.
    """
    leaves: list[Any] = []
    odd: list[str] = []
    stack = [output]
    while stack:
        value = stack.pop()
        if isinstance(value, Mapping):
            leaves += map(repr, value)
            stack += reversed(list(value.values()))
        elif isinstance(value, list | tuple):
            stack += reversed(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            stack += [getattr(value, field.name) for field in reversed(dataclasses.fields(value))]
        elif value is None or isinstance(value, Tensor | bool | int | float | complex | str):
            leaves.append(value)
        else:
            odd.append(f"the output: it holds an object of class {type(value).__name__}, which is not looked into")
    if not odd and not any(isinstance(leaf, Tensor) for leaf in leaves):
        odd.append("the output: there is no tensor in it")
    return leaves, odd[0] if odd else None
