"""Traces a network's run with torch's function and dispatch modes: all calls in order, and the origin of each argument.

The function mode sees the torch functions that Python code calls (``F.relu``, ``Tensor.add``).  The dispatch mode sees, as
operators, what bypasses it (TorchScript, an ``autograd.Function``, code that disables function modes).  A convolution, or the
attention layer in its place, counts as one call, named by its path, whatever it does inside.

Activations are named by the call that returned them, so two networks can be compared call by call without comparing rounded
numbers.  What neither mode sees is listed: tensors changed by another thread (not through ``.data``), memory shared with numpy,
through DLPack or by its address, Python code passed to a call, or run inside one by an operator, a hook or a tensor subclass.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten
from torch.utils.weak import WeakTensorKeyDictionary

from construct.attention import MHSA
from verify.samples.call_counter import CONVOLUTION_OPERATORS, DispatchMode


@dataclass(frozen=True)
class Activation:
    """An activation's origin: tensor number ``part`` among the results of call number ``call``; call 0 is the input."""

    call: int
    part: int


@dataclass(frozen=True)
class Constant:
    """A tensor that depends on no input, as far as the trace knows.

    Attributes:
        tensor: the tensor itself.
        copy: a copy of its numbers at the call, if they are few, because the network may change them later.
        known: whether it is a parameter or buffer of the network, or computed from these by traced calls.
        digest: a digest of its numbers at the call, if they are many.
    """

    tensor: Tensor
    copy: Tensor | None
    known: bool
    digest: bytes | None = None


@dataclass(frozen=True)
class Number:
    """A number that Python read from an activation (``.item()``), with the results equal to it, each as (call, part)."""

    origins: frozenset[tuple[int, int]]
    value: float


@dataclass(frozen=True)
class TracedLayer:
    """A convolution, or the attention layer in its place, as the function of a call."""

    path: str


@dataclass(frozen=True)
class Call:
    """One recorded call.

    Attributes:
        path: the path of the module that makes the call.
        function: a torch function, an operator, or a :class:`TracedLayer`.
        arguments: flattened; tensors as :class:`Activation` or :class:`Constant`.
        structure: the structure of the arguments, from ``torch.utils._pytree``.
        results: shape and dtype of every returned tensor.
        bypassed_layer: the path of a layer whose weight is an argument, so that the call may bypass that layer; else None.
    """

    path: str
    function: Any
    arguments: tuple[Any, ...]
    structure: Any
    results: tuple[tuple[torch.Size, torch.dtype], ...]
    bypassed_layer: str | None = None

    @property
    def name(self) -> str:
        """What is called, and where: ``relu in block1``."""
        if isinstance(self.function, TracedLayer):
            return f"the layer {self.function.path or '(the model)'}"
        name = getattr(self.function, "__name__", str(self.function))
        if name == "__get__":  # reads an attribute
            name = getattr(self.function.__self__, "__name__", name)
        return f"{name} in {self.path}" if self.path else name


@dataclass
class Trace:
    """One run of a network.

    Attributes:
        layers: the paths of the convolutions, or of the attention layers in their place.
        calls: the calls that receive an activation, in order.
        returned: what the network returns, flattened: activations, constants and plain values.
        outputs: the tensors among these.
        convolutions: how many convolution operators were executed, however called.
        untraced: what the trace does not see, one clause each.
    """

    layers: frozenset[str]
    calls: list[Call] = field(default_factory=list)
    returned: list[Any] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    convolutions: int = 0
    untraced: list[str] = field(default_factory=list)


def trace(run: Callable[..., Any], network: nn.Module, inputs: Any, layers: Mapping[nn.Module, str]) -> Trace:
    """Run a network once, without gradients, and record its calls.

    Args:
        run: calls the network with the inputs and returns its output.
        network: already in the mode in which to run it.
        inputs: a tensor, or tensors in tuples, lists and dicts; the floating-point ones are activations.
        layers: convolutions, or the attention layers in their place → the path that names them; each call of one counts as one
            call, as does that of any other attention layer.
    """
    record = Trace(frozenset(layers.values()))
    tracer = _Tracer(record, network, inputs, layers)
    with torch.no_grad(), tracer.hooked(network), _Operators(tracer), tracer:
        output = run(network, inputs)
    leaves, incomplete = flattened(output)
    record.returned = [tracer.named(value) for value in leaves]
    record.outputs = _tensors(leaves)
    record.untraced += [incomplete] if incomplete else []
    return record


@contextmanager
def untraced() -> Iterator[None]:
    """Suspend tracing, for measurements during a run."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


SMALL = 4096
"""The largest constant, in numbers, of which a copy is kept."""

ATTRIBUTES = (
    "shape dtype device ndim layout requires_grad is_nested is_cuda is_mps is_sparse is_quantized is_leaf itemsize"
)
OF_TORCH: Any = (getattr(Tensor.__torch_function__, "__func__", None), nn.Parameter.__torch_function__)
"""The ``__torch_function__`` of plain tensors and parameters, which runs no code of its own."""

PLAIN_OPERATORS = frozenset("aten prim prims quantized mkldnn".split())
"""Namespaces of operators that run no Python code."""

METHODS = "size dim ndimension numel nelement __len__ is_floating_point is_complex get_device stride is_contiguous"
SILENT: frozenset[Any] = frozenset(
    [getattr(Tensor, name).__get__ for name in ATTRIBUTES.split()] + [getattr(Tensor, name) for name in METHODS.split()]
)
"""Functions whose results depend on no number; the trace does not record their calls."""

EMPTY = frozenset("empty empty_like empty_strided empty_permuted new_empty new_empty_strided".split())
"""Functions that return uninitialised tensors, which are named by the call, as activations are."""

_PLAIN = (Tensor, bool, int, float, complex, str, torch.Size, torch.dtype, torch.device, torch.layout, type(None))


class _Tracer(TorchFunctionMode):
    """Function mode: records the torch functions that Python code calls, and what the dispatch mode and the hooks see."""

    def __init__(self, record: Trace, network: nn.Module, inputs: Any, layers: Mapping[nn.Module, str]):
        super().__init__()
        own = {module: path for path, module in network.named_modules() if isinstance(module, MHSA)}
        self.record, self.layers = record, own | dict(layers)
        self.inside = 0
        """How many calls in progress hide their inner calls."""
        self.paths = [""]
        self._entered: tuple[tuple[Any, ...], Any] = (), None  # arguments of the layer in progress, and their structure
        # tensor → (Activation, or None for a constant of the network; the version that the trace last saw)
        self._origins = WeakTensorKeyDictionary()
        self._numbers: dict[str, set[tuple[int, int]]] = {}
        self._weights = {id(conv.weight): path for conv, path in layers.items() if "weight" in conv._parameters}
        for module in network.modules():
            for tensor in _tensors([*module.parameters(False), *module.buffers(False), *vars(module).values()]):
                self._note(tensor, None)
        for part, tensor in enumerate(_tensors(tree_flatten(inputs)[0])):
            self._note(tensor, Activation(0, part) if tensor.is_floating_point() else None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record and pass on."""
        for kind in types:
            if getattr(kind.__torch_function__, "__func__", kind.__torch_function__) not in OF_TORCH:
                self.note_untraced(f"{getattr(func, '__name__', func)} is worked out by the class {kind.__name__}")
        return self.called(func, args, kwargs or {})

    def called(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Make a call, and record it if an activation is among its arguments."""
        if self.inside or function in SILENT:
            return function(*args, **kwargs)
        leaves, structure = tree_flatten((args, kwargs))
        self.inside += 1
        try:
            arguments = tuple(map(self.named, leaves))
            versions = [(t, _version(t)) for t in _tensors(leaves)]
            output = function(*args, **kwargs)
        finally:
            self.inside -= 1
        results, name = tree_flatten(output)[0], getattr(function, "__name__", "")
        changed = [t for t, version in versions if _version(t) != version]
        active = any(isinstance(value, Activation) for value in arguments)
        # Numbers can be changed there past torch.  (Networks also ask for weights' addresses, to see which share memory.)
        if active and name == "data_ptr":
            self.note_untraced(f"data_ptr in {self.paths[-1] or 'the network'} hands out an address")
        if active or name in EMPTY:
            self._record(function, arguments, structure, results, changed)
        elif not any(isinstance(value, Constant) and not value.known for value in arguments):
            for tensor in _tensors(results):
                self._note(tensor, None)
        if changed:
            self._renew(changed)
        return output

    def _note(self, tensor: Tensor, origin: Activation | None) -> None:
        self._origins[tensor] = origin, _version(tensor)

    def _renew(self, changed: list[Tensor]) -> None:
        """Note that a call also changed the tensors that share memory with those it changed."""
        memory = {_memory(tensor) for tensor in changed}
        for tensor, (origin, _) in list(self._origins.items()):
            if _memory(tensor) in memory:
                self._note(tensor, origin)

    def _record(
        self,
        function: Any,
        arguments: tuple[Any, ...],
        structure: Any,
        results: list[Any],
        changed: Iterable[Tensor] = (),
    ) -> None:
        """Record a call; tensors that it returns or changes in place become activations."""
        returned = _tensors(results)
        convolves = CONVOLUTION_OPERATORS.search(getattr(function, "__name__", str(function)))
        weights = [self._weights.get(id(c.tensor)) for c in arguments if convolves and isinstance(c, Constant)]
        call = Call(
            path=self.paths[-1],
            function=function,
            arguments=arguments,
            structure=structure,
            results=tuple((tensor.shape, tensor.dtype) for tensor in returned),
            bypassed_layer=next((path for path in weights if path is not None), None),
        )
        self.record.calls.append(call)
        number = len(self.record.calls)
        for part, tensor in enumerate([*changed, *returned]):
            self._note(tensor, Activation(number, part))
        for part, value in enumerate(results):
            if type(value) in (int, float):
                self._numbers.setdefault(repr(value), set()).add((number, part))
            elif not isinstance(value, _PLAIN):
                self.note_untraced(f"{call.name} hands out a {type(value).__name__}")

    def named(self, value: Any) -> Any:
        """The record of an argument: a tensor's origin, the call that gave a number (``.item()``), or the value itself."""
        if isinstance(value, Tensor):
            origin, version = self._origins[value] if value in self._origins else (None, None)
            if version is not None and version != _version(value):
                self.note_untraced("a tensor is changed without a traced call")
            if origin is not None:
                return origin
            few, known = value.numel() <= SMALL, version is not None
            return Constant(value, value.detach().clone() if few else None, known, None if few else _digest(value))
        if type(value) in (int, float) and repr(value) in self._numbers:
            return Number(frozenset(self._numbers[repr(value)]), value)
        return value

    def note_untraced(self, what: str) -> None:
        """Note something that the trace does not see."""
        if what not in self.record.untraced:
            self.record.untraced.append(what)

    @contextmanager
    def hooked(self, network: nn.Module) -> Iterator[None]:
        """Hook every module, so that calls are recorded with its path."""
        paths = {module: path for path, module in network.named_modules()} | self.layers
        with ExitStack() as stack:
            for module, path in paths.items():
                for handle in self._hook(module, path):
                    stack.callback(handle.remove)
            yield

    def _hook(self, module: nn.Module, path: str) -> list[Any]:
        hooks = 0

        def own_code() -> bool:
            return (
                hooks != len(module._forward_hooks) + len(module._forward_pre_hooks)
                or "forward" in vars(module)
                or bool(nn.modules.module._has_any_global_hook())
            )

        def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
            self.paths.append(path)
            if module in self.layers:
                if own_code():
                    self.note_untraced(f"{path or 'the layer'} gets a hook, or a forward, while the network runs")
                self.inside += 1
                if self.inside == 1:
                    leaves, structure = tree_flatten((args, kwargs))
                    self._entered = tuple(map(self.named, leaves)), structure

        def leave(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self.paths.pop()
            if module in self.layers:
                self.inside -= 1
                if not self.inside and output is not None:  # None after an error
                    self._record(TracedLayer(path), *self._entered, tree_flatten(output)[0])

        handles = [
            module.register_forward_pre_hook(enter, with_kwargs=True),
            module.register_forward_hook(leave, with_kwargs=True, always_call=True),
        ]
        hooks = len(module._forward_hooks) + len(module._forward_pre_hooks)
        return handles


class _Operators(DispatchMode):
    """Dispatch mode: counts convolution operators, and records operators that no torch function has called."""

    def __init__(self, tracer: _Tracer):
        super().__init__()
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record and pass on."""
        if "conv" in str(func) and CONVOLUTION_OPERATORS.search(str(func)):  # without FFTs
            self.tracer.record.convolutions += 1
        if func.namespace not in PLAIN_OPERATORS:
            self.tracer.note_untraced(f"{func} is an operator beyond torch's own")
        return self.tracer.called(func, args, kwargs or {})


def _version(tensor: Tensor) -> int:
    """How often a tensor, or the tensor that it views, was changed; −1 if torch does not count."""
    with torch._C.DisableTorchFunction():
        return -1 if tensor.is_inference() else tensor._version


def _memory(tensor: Tensor) -> int | None:
    with torch._C.DisableTorchFunction():
        try:
            return tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):  # sparse
            return None


def _digest(tensor: Tensor) -> bytes | None:
    """A digest of a tensor's numbers, with −0 equal to 0; None if it has no plain memory."""
    try:
        plain = (tensor.detach().cpu() + 0 if tensor.is_floating_point() else tensor.detach().cpu()).contiguous()
        return hashlib.sha256(plain.view(-1).view(torch.uint8).numpy().data).digest()
    except (NotImplementedError, RuntimeError, TypeError):
        return None


def _tensors(values: list[Any]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor)]


def flattened(output: Any) -> tuple[list[Any], str | None]:
    """The tensors and plain values of a nested output, in order; and why these are not all of it, or None."""
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
