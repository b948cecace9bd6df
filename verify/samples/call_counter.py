"""Call counter: counts the convolution and FFT operators that torch executes, whatever module or
function calls them.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

CONVOLUTION_OPERATORS = re.compile(r"conv(?!ert)|fft")
"""Names of operators that are a convolution, part of one, or a substitute for one
(but not ``convert``).
"""


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that does not trigger the import of torch's compiler."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled, but to find that out torch would import its compiler, which
        takes seconds.
        """
        return False


uncounted = _disable_current_modes
"""Suspends counting in a ``with`` block, for measurements during a run."""


class _ConvolutionCounter(DispatchMode):
    """Dispatch mode that counts every executed convolution or FFT; ``calls`` holds the counts by
    name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the operator and execute it."""
        name = str(func)
        if CONVOLUTION_OPERATORS.search(name):
            self.calls[name] += 1
        defined = OPDEFS.get(func._schema.name)
        if defined is None:
            return func(*args, **(kwargs or {}))
        kernels = defined._backend_fns
        device = next((a.device.type for a in args if isinstance(a, Tensor)), None)
        with self:  # an operator that Python code defines: what it executes counts too
            return kernels.get(device, kernels.get(None, defined._init_fn))(*args, **(kwargs or {}))


def convolution_calls(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Counter[str]:
    """Call a function and count the convolution operators that torch executes in the call.

    >>> import torch
    >>> convolution_calls(torch.nn.Conv1d(1, 1, 3), torch.ones(1, 1, 8)).total() > 0
    True
    """
    with _ConvolutionCounter() as counter:
        function(*args, **kwargs)
    return counter.calls
