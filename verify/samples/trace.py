"""Traces a network's run with torch's function and dispatch modes: every call in order, and where each argument comes from.

The function mode sees the functions of torch that Python code calls (``F.relu``, ``Tensor.add``).  What bypasses it (TorchScript,
an ``autograd.Function``, code that disables function modes) the dispatch mode sees as operators.  A convolution and the attention
layer in its place are one call each, named by their path, whatever they do inside.

Activations are named by the call that returned them, so that two networks are compared call by call without comparing rounded
numbers.  What neither mode sees is listed: tensors changed by another thread (not through ``.data``), memory shared with numpy,
through DLPack or by its address, Python code that a call is given or that an operator, a hook or a class of tensors runs inside
one.
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
    """An activation, by its origin: tensor number ``part`` of the results of call number ``call``; call 0 is the input."""

    call: int
    part: int


@dataclass(frozen=True)
class Constant:
    """A tensor into which no input went, as far as the trace knows.

    Attributes:
        tensor: itself.
        copy: of its numbers at the call, where there are few; the network may change them later.
        known: whether it is a parameter or a buffer of the network, or computed from such by traced calls.
        digest: of its numbers at the call, where there are many.
    """

    tensor: Tensor
    copy: Tensor | None
    known: bool
    digest: bytes | None = None


@dataclass(frozen=True)
class Number:
    """A number that Python read off an activation (``.item()``), with the results that it is: (call, part) each."""

    origins: frozenset[tuple[int, int]]
    value: float


@dataclass(frozen=True)
class TracedLayer:
    """A convolution, or the attention layer in its place, as what is called."""

    path: str


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        path: of the module in which it happens.
        function: of torch, or an operator, or a :class:`TracedLayer`.
        arguments: flattened; tensors as :class:`Activation` or :class:`Constant`.
        structure: of the arguments, as ``torch.utils._pytree`` has it.
        results: shape and dtype of every tensor that it returns.
        bypassed_layer: the path of a layer whose weight goes in, so that its work may be done without calling it; else None.
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
        if name == "__get__":  # an attribute
            name = getattr(self.function.__self__, "__name__", name)
        return f"{name} in {self.path}" if self.path else name


@dataclass
class Trace:
    """One run of a network.

    Attributes:
        layers: the paths of the convolutions, or of the attention layers in their place.
        calls: in order; those into which an activation goes.
        returned: what the network returns, flattened: activations, constants and plain values.
        outputs: the tensors among these.
        convolutions: how many convolution operators were executed, in any way.
        untraced: what the trace does not see, a clause each.
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
        run: (network, inputs) → what the network returns.
        network: in the mode in which it is to be run.
        inputs: a tensor, or tensors in tuples, lists and dicts; the floating-point ones are activations.
        layers: convolutions, or the attention layers in their place → the path that names them; each call of one counts as one,
            and so does that of any other attention layer.
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
    """Suspend tracing within, for measurements in the middle of a run."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


SMALL = 4096
"""Numbers of a constant of which a copy is kept."""

ATTRIBUTES = (
    "shape dtype device ndim layout requires_grad is_nested is_cuda is_mps is_sparse is_quantized is_leaf itemsize"
)
OF_TORCH: Any = (getattr(Tensor.__torch_function__, "__func__", None), nn.Parameter.__torch_function__)
"""What tensors and parameters make of a function: nothing of their own."""

PLAIN_OPERATORS = frozenset("aten prim prims quantized mkldnn".split())
"""Namespaces of operators that run no Python code."""

METHODS = "size dim ndimension numel nelement __len__ is_floating_point is_complex get_device stride is_contiguous"
SILENT: frozenset[Any] = frozenset(
    [getattr(Tensor, name).__get__ for name in ATTRIBUTES.split()] + [getattr(Tensor, name) for name in METHODS.split()]
)
"""What these return depends on no number; they are no calls of the trace."""

EMPTY = frozenset("empty empty_like empty_strided empty_permuted new_empty new_empty_strided".split())
"""What these return has no numbers yet, so that it is named by its call as activations are."""

_PLAIN = (Tensor, bool, int, float, complex, str, torch.Size, torch.dtype, torch.device, torch.layout, type(None))


class _Tracer(TorchFunctionMode):
    """Function mode: records the functions of torch that Python code calls, and what the dispatch mode and the hooks see."""

    def __init__(self, record: Trace, network: nn.Module, inputs: Any, layers: Mapping[nn.Module, str]):
        super().__init__()
        own = {module: path for path, module in network.named_modules() if isinstance(module, MHSA)}
        self.record, self.layers = record, own | dict(layers)
        self.inside = 0
        """How many calls are under way whose inner calls do not count."""
        self.paths = [""]
        self._entered: tuple[tuple[Any, ...], Any] = (), None  # arguments of the layer under way, and their structure
        # tensor → (Activation, or None for a constant of the network's own; the version in which the trace left it)
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
        """Make a call, and record it if an activation goes into it."""
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
        if getattr(function, "__name__", "") == "data_ptr":  # numbers can be changed there past torch
            self.note_untraced(f"data_ptr in {self.paths[-1] or 'the network'} hands out an address")
        results = tree_flatten(output)[0]
        changed = [t for t, version in versions if _version(t) != version]
        if any(isinstance(value, Activation) for value in arguments) or getattr(function, "__name__", "") in EMPTY:
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
        """Note that tensors which share memory with those that a call has changed are changed by it, too."""
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
        """Record a call; what it returns, and what it changes in place, are activations from now on."""
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
        """What stands for an argument: a tensor's origin, the call that gave a number (``.item()``), anything else as it is."""
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
        """Hook every module, so that calls are named by its path."""
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
    """Dispatch mode: counts convolution operators, and records the operators that no function of torch has called."""

    def __init__(self, tracer: _Tracer):
        super().__init__()
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record and pass on."""
        if "conv" in str(func) and CONVOLUTION_OPERATORS.search(str(func)):  # an FFT is none
            self.tracer.record.convolutions += 1
        if func.namespace not in PLAIN_OPERATORS:
            self.tracer.note_untraced(f"{func} is an operator beyond torch's own")
        return self.tracer.called(func, args, kwargs or {})


def _version(tensor: Tensor) -> int:
    """How often a tensor, or one of which it is a view, was changed; −1 where torch does not count."""
    with torch._C.DisableTorchFunction():
        return -1 if tensor.is_inference() else tensor._version


def _memory(tensor: Tensor) -> int | None:
    with torch._C.DisableTorchFunction():
        try:
            return tensor.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):  # sparse
            return None


def _digest(tensor: Tensor) -> bytes | None:
    """A digest of a tensor's numbers, to which −0 is 0; None where it has no plain memory."""
    try:
        plain = (tensor.detach().cpu() + 0 if tensor.is_floating_point() else tensor.detach().cpu()).contiguous()
        return hashlib.sha256(plain.view(-1).view(torch.uint8).numpy().data).digest()
    except (NotImplementedError, RuntimeError, TypeError):
        return None


def _tensors(values: list[Any]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor)]


def flattened(output: Any) -> tuple[list[Any], str | None]:
    """Every tensor and every plain value in a nested output, in order; and why that is not the whole of it, if it is not."""
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
