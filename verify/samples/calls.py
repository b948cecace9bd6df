"""Counting convolutions as they are executed, whatever module or function they come from."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

RELATIVES = re.compile(r"conv(?!ert)|fft")
"""Names of operators that are a convolution, part of one, or a way around one (but not ``convert``)."""


class ConvolutionCounter(TorchDispatchMode):
    """While active, counts every executed operator that is a convolution or an FFT; ``calls`` holds the counts by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; to make sure of that, torch would import its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count and pass on."""
        name = str(func)
        if RELATIVES.search(name):
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


def convolution_calls(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Counter[str]:
    """Call, and return which convolution operators were executed and how often."""
    with ConvolutionCounter() as counter:
        function(*args, **kwargs)
    return counter.calls
