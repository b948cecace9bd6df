"""A cache bounded by bytes: what is planned for one input size may be large, and there is no end of
sizes.
"""

import sys
from collections.abc import Callable
from functools import wraps
from gc import get_referents
from types import FunctionType
from typing import Any

from torch import Tensor

MOST_BYTES = 2**26
"""What all cached functions together keep (64 MiB); beyond it, everything is forgotten."""
KEY_BYTES = 2**12
"""What is counted for what a key's parts hold."""


class BoundedCache(dict[Any, Any]):
    """A dictionary that is emptied before its values, and about as much for its keys, take more
    than ``most`` bytes.
    """

    def __init__(self, most: int):
        super().__init__()
        self.most = most
        self.bytes = 0

    def keep(self, key: Any, value: Any) -> None:
        """Add an entry; it is kept alone if it is larger than ``most``."""
        # Parts of keys are mostly shared, and a walk through them would take longer than many a
        # call.
        size = KEY_BYTES + sum(map(sys.getsizeof, key)) + bytes_of(value)
        if self.bytes + size > self.most:
            self.clear()
            self.bytes = 0
        self[key] = value
        self.bytes += size


RESULTS = BoundedCache(MOST_BYTES)
"""The results of all functions with :func:`bounded_cache`, by function and arguments."""


def bounded_cache(function: Callable[..., Any]) -> Callable[..., Any]:
    """Cache a function's results, none of which is None, by its arguments, all of which are
    positional.
    """

    @wraps(function)
    def cached(*args: Any) -> Any:
        key = function, args
        result = RESULTS.get(key)
        if result is None:
            result = function(*args)
            RESULTS.keep(key, result)
        return result

    return cached


def bytes_of(*things: Any) -> int:
    """Bytes of Python objects and of all that they hold, without tensors, classes and code."""
    total = 0
    counted = set[int]()
    waiting = [*things]
    while waiting:
        thing = waiting.pop()
        if id(thing) in counted or isinstance(thing, Tensor | type):
            continue
        counted.add(id(thing))
        total += sys.getsizeof(thing)
        waiting += (
            (thing.__closure__ or ()) if isinstance(thing, FunctionType) else get_referents(thing)
        )
    return total
