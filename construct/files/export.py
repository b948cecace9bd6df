"""Export of a converted network to ``.pt2`` (torch.export) and ONNX, to run without this project.

The program holds plain tensor operations: it gathers the padded tokens that all heads see, and
multiplies them by the heads' matrices.  The shifts of the heads are constants in it, and it is as
long for one head as for a thousand.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from construct.attention import MHSA
from construct.errors import one_line
from construct.execution.traced import FROZEN, freeze
from construct.modules.traversal import every_module, substitute


def frozen_copy(model: nn.Module) -> nn.Module:
    """A copy in eval mode in which every attention layer has an attribute that says where its heads
    look.

    Raises:
        ValueError: a layer cannot be traced; the message has its path.
    """
    network = substitute(model, {}).eval().requires_grad_(False)
    for path, module in every_module(network):
        if isinstance(module, MHSA):
            try:
                setattr(module, FROZEN, freeze(module))
            except ValueError as error:
                raise ValueError(f"{path or 'the layer'}: {error}") from None
    return network


def export_program(
    model: nn.Module, input_size: Sequence[int] = (), inputs: Any = None
) -> "tuple[torch.export.ExportedProgram, tuple[str, ...]]":
    """Export the network as a torch.export program, with all axes of its inputs dynamic where
    possible.

    Args:
        model: a converted network.
        input_size: C, S_1 … S_d of an example, for a network that takes one tensor of
            floating-point numbers.
        inputs: instead, an example: a tensor, a tuple of arguments, or a dict of keyword arguments.

    Returns:
        The program, and the static axes of its input ("batch", "axis 1", …; without the channels of
        an ``input_size``).

    Raises:
        ValueError: a layer, or the network, cannot be traced.
    """
    program = _exported(_Example(frozen_copy(model), input_size, inputs))
    program.example_inputs = None  # they are the user's, and a file would hold them
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    if not output.all_input_nodes:
        raise ValueError("the network cannot be exported: it returns no tensor")
    shapes = _input_shapes(program)
    static = []
    for name, shape in shapes.items():
        axes = ["batch", *(f"axis {axis}" for axis in range(1, len(shape)))]
        if inputs is None:  # axis 1 is the first after the channels
            axes = ["batch", "", *axes[1:-1]]
        if len(shapes) > 1:
            axes = [f"{name}'s {axis}" for axis in axes]
        static += [axis for axis, n in zip(axes, shape, strict=True) if n is not None and axis]
    return program, tuple(static)


class _Example(NamedTuple):
    """A network and what it is run on: the user's ``inputs``, or a random tensor of a size."""

    network: nn.Module
    input_size: Sequence[int]
    inputs: Any

    def arguments(self, batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments; a random tensor has ``batch`` examples."""
        if isinstance(self.inputs, Mapping):
            return (), dict(self.inputs)
        if isinstance(self.inputs, tuple):
            return self.inputs, {}
        if self.inputs is not None:
            return (self.inputs,), {}
        floats = (p.dtype for p in self.network.parameters() if p.is_floating_point())
        generator = torch.Generator().manual_seed(0)
        dtype = next(floats, torch.float32)
        shape = (batch, *self.input_size)
        return (torch.randn(shape, dtype=dtype, generator=generator, device="cpu"),), {}


def _exported(example: _Example) -> "torch.export.ExportedProgram":
    """Export with every axis dynamic; if that fails, with the batch alone; then with none."""
    for dynamic in (None, 1):
        with contextlib.suppress(ValueError):
            return _traced(example, dynamic, batch=2)
    return _traced(example, 0, batch=1)


def _traced(example: _Example, dynamic: int | None, batch: int) -> "torch.export.ExportedProgram":
    """Export with the first ``dynamic`` axes dynamic, but for the channels of an ``input_size``."""

    def free(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        axes = {*range(value.dim())[:dynamic]}
        if example.inputs is None:
            axes -= {1}
        return dict.fromkeys(axes, torch.export.Dim.AUTO)

    args, kwargs = example.arguments(batch)
    with torch.no_grad(), _quiet():
        return torch.export.export(
            example.network, args, kwargs, dynamic_shapes=tree_map(free, kwargs or args)
        )


def _input_shapes(program: "torch.export.ExportedProgram") -> dict[str, list[int | None]]:
    """The shapes of the tensors that a program takes, by name; None for a dynamic axis."""
    shapes = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.name in program.graph_signature.user_inputs and isinstance(value, torch.Tensor):
            # a static axis has a number, or a symbol that was specialised to one
            static = [isinstance(n, int) or n.node.expr.is_number for n in value.shape]
            sizes = zip(value.shape, static, strict=True)
            shapes[node.name] = [int(n) if known else None for n, known in sizes]
    return shapes


@contextlib.contextmanager
def _quiet(failure: str = "the network cannot be exported") -> Iterator[None]:
    """Silence the tracer, and what the network prints while it is traced.

    Raises:
        ValueError: the first line of an error's cause, without where torch would have it reported.
    """
    level = logging.getLogger("torch").level
    logging.getLogger("torch").setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            yield
    except MemoryError:
        raise
    except Exception as error:  # tracing a user's network may raise anything
        first, *_ = str(error.__cause__ or error).strip().split("\n")
        first = first.partition(" See the stack trace")[0]
        raise ValueError(f"{failure}: {one_line(first)}") from error
    finally:
        logging.getLogger("torch").setLevel(level)


@dataclass(frozen=True)
class Program:
    """An exported network.

    Attributes:
        fixed: the static axes of the input ("batch", "axis 1", ...).
        difference: the greatest difference from the converted network on the example, or a random
            input of its size, run from ``content``; None if no runtime is installed.
        tensors: those that the exporter took from the network, by name.
    """

    content: bytes
    fixed: tuple[str, ...]
    difference: float | None
    tensors: Mapping[str, torch.Tensor]

    def notes(self) -> Iterator[str]:
        """Remarks for the user."""
        if self.fixed:
            yield f"the program takes only inputs of the size of the example along: {', '.join(self.fixed)}"
        if self.difference is not None:
            yield f"the program, run from its file, differs by at most {self.difference:.2g} on one input"


def to_pt2(model: nn.Module, input_size: Sequence[int] = (), inputs: Any = None) -> Program:
    """The network as a ``.pt2`` file, which ``torch.export.load`` reads without this project.

    The example is that of :func:`export_program`.

    Raises:
        ValueError: see :func:`export_program`.
    """
    program, static = export_program(model, input_size, inputs)
    stream = io.BytesIO()
    with _quiet():
        torch.export.save(program, stream)
        reloaded = torch.export.load(io.BytesIO(stream.getvalue())).module()  # safe: made just now
    return Program(
        stream.getvalue(),
        static,
        _difference(_Example(model, input_size, inputs), program, reloaded),
        program.state_dict,
    )


def to_onnx(model: nn.Module, input_size: Sequence[int] = (), inputs: Any = None) -> Program:
    """The network as an ONNX file, run once with onnxruntime if that is installed.

    Raises:
        ValueError: see :func:`export_program`; or a package is missing, or ONNX or onnxruntime does
            not support the network.
    """
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"ONNX export needs packages that are not installed: {', '.join(missing)} (pip install {' '.join(missing)})"
        )
    program, static = export_program(model, input_size, inputs)
    stream = io.BytesIO()
    with _quiet():
        converted = torch.onnx.export(program, dynamo=True, verbose=False, optimize=True)
        assert converted is not None
        converted.save(stream)  # type: ignore[arg-type]
    content = stream.getvalue()
    difference = None
    if find_spec("onnxruntime") is not None:
        example = _Example(model, input_size, inputs)
        difference = _difference(example, program, partial(_run_onnx, content))
    return Program(content, static, difference, program.state_dict)


def _run_onnx(content: bytes, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """The outputs of an ONNX file in onnxruntime."""
    import onnxruntime  # optional

    tensors = [x.numpy() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    with _quiet(
        "onnxruntime cannot run its program"
    ):  # e.g. an operator lacks a kernel for a dtype
        session = onnxruntime.InferenceSession(content)
        names = [node.name for node in session.get_inputs()]
        outputs = session.run(None, dict(zip(names, tensors, strict=True)))
    return list(map(torch.as_tensor, outputs))


def _difference(
    example: _Example, program: "torch.export.ExportedProgram", call: Callable[..., object]
) -> float:
    """The greatest difference between the outputs of the network and of its reloaded program."""
    network = substitute(example.network, {}).eval()
    batch = next((shape[0] for shape in _input_shapes(program).values() if shape), None)
    args, kwargs = example.arguments(batch or 2)
    results = []
    with torch.no_grad():
        for run in (call, network):
            copied = tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
            outputs = run(*copied[0], **copied[1])
            results.append([y for y in tree_leaves(outputs) if isinstance(y, torch.Tensor)])
    actual, expected = results
    ours = [tuple(y.shape) for y in actual]
    theirs = [tuple(y.shape) for y in expected]
    if ours != theirs:
        raise ValueError(
            f"the program returns tensors of sizes {ours}, not {theirs} as the network does"
        )
    differences = [torch.zeros(1, dtype=torch.float64, device="cpu")]
    for a, b in zip(actual, expected, strict=True):
        differences.append(
            torch.where(a == b, 0.0, (a.double() - b.double()).abs()).flatten().cpu()
        )
    return float(torch.cat(differences).max())  # NaN if one is
