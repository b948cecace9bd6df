"""A run of a network, seen operation by operation.

Every function of torch that the network calls is intercepted, and every call of a convolution that has been replaced; so
nothing that is computed from an activation escapes: a function without a rule, a branch on a number, a number read out into
Python, each is one of those functions.  What returns shapes alone is let through.  Tensors that no activation went into are
constants; they must be the network's own, or come from functions seen here.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from verify.balls import NoBound
from verify.oracle import Convolution
from verify.rule_table import SILENT, changes_its_argument


@dataclass(frozen=True)
class Activation:
    """Stands for an activation in a recorded call: the output number ``part`` of call number ``call``."""

    call: int
    part: int


@dataclass(frozen=True)
class Event:
    """One call.

    Attributes:
        path: of the module in which it happened.
        function: what was called; the module itself for a replaced convolution.
        args, kwargs: activations as :class:`Activation`, everything else as it was.
        outputs: every tensor returned, in order.
        result: what was returned, as it was.
    """

    path: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Tensor, ...] = ()
    result: Any = None

    @cached_property
    def fields(self) -> Convolution:
        """Of a replaced convolution, its raw fields at this call: read once, whatever is claimed."""
        return Convolution.read(self.function)

    @property
    def name(self) -> str:
        """What was called, and where."""
        function = self.function
        called = (
            type(function).__name__ if isinstance(function, nn.Module) else getattr(function, "__name__", str(function))
        )
        if called == "__get__":  # an attribute
            called = getattr(function.__self__, "__name__", called)
        return f"{self.path} ({called})" if self.path else called


Listener = Callable[[Event], None]
"""Told of every call; may raise :class:`NoBound`."""


class Recorder(TorchFunctionMode):
    """While active, tells ``listener`` of every call that an activation goes into.

    Args:
        model: the network that is run.
        replaced: the modules that count as one operation, with the path of each.
        listener: what to tell.

    Attributes:
        failure: the first call that could not be dealt with, and why; nothing is told after it.
    """

    def __init__(self, model: nn.Module, replaced: Mapping[nn.Module, str], listener: Listener):
        super().__init__()
        self.model, self.replaced, self.listener = model, replaced, listener
        self.failure: str | None = None
        self.calls = 0
        self._active = WeakTensorKeyDictionary()  # activation → (Activation, its version)
        self._constants = WeakTensorKeyDictionary()
        self._path = [""]
        self._inside = 0  # a replaced module

    # ---- the run -------------------------------------------------------------------------------------------------------

    def run(self, inputs: tuple[Any, ...]) -> Any:
        """Run the network; the floating-point tensors among the inputs are activations of call 0."""
        for module in self.model.modules():
            for value in (*module.parameters(False), *module.buffers(False), *vars(module).values()):
                if isinstance(value, Tensor):
                    self._constants[value] = True
        own = tree_map(lambda value: value.detach().clone() if isinstance(value, Tensor) else value, inputs)
        for part, tensor in enumerate(_tensors(own)):
            if tensor.is_floating_point():
                self._remember(tensor, Activation(0, part))
            else:
                self._constants[tensor] = True
        self.calls = 1
        with torch.no_grad(), self._watching(), self:
            return self.model(*own)

    def returned(self, output: Any) -> list[Activation | None]:
        """What each tensor that the network returned is; None for a constant.  A tensor of unknown origin is a failure."""
        found: list[Activation | None] = []
        for value in _tensors(output):
            try:
                found.append(self._known(value))
            except NoBound as error:
                self.failure = self.failure or f"the output: {error}"
        return found

    @contextmanager
    def _watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            for path, module in self.model.named_modules():
                enter = module.register_forward_pre_hook(self._enter(path, module), with_kwargs=True)
                stack.callback(enter.remove)
                leave = module.register_forward_hook(self._leave(module), with_kwargs=True, always_call=True)
                stack.callback(leave.remove)
            yield

    def _enter(self, path: str, module: nn.Module) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            self._path.append(path)
            if module in self.replaced:
                self._inside += 1

        return hook

    def _leave(self, module: nn.Module) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if module in self.replaced and self._inside == 1:
                self._told(self.replaced[module], module, args, kwargs, output)
            if module in self.replaced:
                self._inside -= 1
            self._path.pop()

        return hook

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call, and tell."""
        kwargs = kwargs or {}
        if self._inside or self.failure or func in SILENT:
            return func(*args, **kwargs)
        before = self._described(func, args, kwargs)
        output = func(*args, **kwargs)
        if before is not None:
            self._note(self._path[-1], func, *before, output)
        elif not self.failure and all(self._constants.get(value) for value in _tensors((args, kwargs))):
            for value in _tensors(output):
                self._constants[value] = True
        return output

    # ---- what goes in and out --------------------------------------------------------------------------------------------

    def _told(self, path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.failure:
            return
        before = self._described(module, args, kwargs)
        if before is not None:
            self._note(path, module, *before, output)

    def _described(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """The arguments with activations named; None where there are none, or after a failure."""
        if not any(self._active.get(value) is not None for value in _tensors((args, kwargs))):
            return None
        try:
            if kwargs.get("out") is not None:
                raise NoBound("it writes into a tensor given to it")
            if changes_its_argument(func, args, kwargs) and self._active.get(args[0] if args else None) is None:
                raise NoBound("it changes a constant in place")
            return tree_map(self._named, (args, kwargs))
        except NoBound as error:
            self.failure = f"{Event(self._path[-1], func, (), {}).name}: {error}"
            return None

    def _named(self, value: Any) -> Any:
        return (self._known(value) or value) if isinstance(value, Tensor) else value

    def _known(self, value: Tensor) -> Activation | None:
        """The activation that a tensor is, or None for a constant.

        Raises:
            NoBound: it is neither, or it was changed since.
        """
        found = self._active.get(value)
        if found is None:
            if self._constants.get(value) is None:
                raise NoBound("a tensor of unknown origin goes in")
            return None
        activation, version = found
        if version != value._version:
            raise NoBound("an activation was changed in place, through another view of it")
        return activation

    def _note(self, path: str, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        """Tell the listener, and remember the outputs as activations."""
        outputs = tuple(_tensors(output))
        event = Event(path, func, args, kwargs, outputs, output)
        self._inside += 1  # what the listener computes is none of the network's
        try:
            with torch._C.DisableTorchFunction():  # nor need it pass through here
                self.listener(event)
        except NoBound as error:
            self.failure = f"{event.name}: {error}"
            return
        finally:
            self._inside -= 1
        for part, tensor in enumerate(outputs):
            self._remember(tensor, Activation(self.calls, part))
        self.calls += 1

    def _remember(self, tensor: Tensor, activation: Activation) -> None:
        if tensor.is_inference():
            self.failure = self.failure or "it runs in inference mode, in which nobody counts what is changed in place"
        else:
            self._active[tensor] = (activation, tensor._version)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
