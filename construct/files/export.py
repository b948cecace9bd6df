"""Converted networks as programs that run without this project: ``.pt2`` and ONNX.

A ``.pt2`` or ONNX file holds plain tensor operations, and runs without this project: each head is a strided slice of the
padded tokens times its matrix.  Where the heads look is frozen in it.
"""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from construct.attention import MHSA
from construct.errors import one_line
from construct.execution.traced import FROZEN, freeze
from construct.modules.traversal import every_module


def frozen_copy(model: nn.Module) -> nn.Module:
    """A copy in eval mode, every attention layer of which knows where its heads look.

    Raises:
        ValueError: some layer cannot be traced; its path is named.
    """
    found = copy.deepcopy(model).eval().requires_grad_(False)
    for path, module in every_module(found):
        if isinstance(module, MHSA):
            try:
                setattr(module, FROZEN, freeze(module))
            except ValueError as error:
                raise ValueError(f"{path or 'the layer'}: {error}") from None
    return found


def exported(model: nn.Module, input_size: Sequence[int]) -> "tuple[torch.export.ExportedProgram, tuple[str, ...]]":
    """The network as a program of plain tensor operations, for any batch and any spatial size that it allows.

    Args:
        model: a converted network that takes one tensor.
        input_size: C, S_1 … S_d of an example.

    Returns:
        The program, and the axes of its input that had to stay as in the example ("batch", "axis 1", …).

    Raises:
        ValueError: some layer cannot be traced, or the network itself cannot be.
    """
    network = frozen_copy(model)
    free, axes = torch.export.Dim.AUTO, range(2, len(input_size) + 1)
    errors: list[Exception] = []
    # Every axis is free where the network allows that; else the batch alone, else one example and no other size.
    for batch, dynamic in ((2, {0: free, **dict.fromkeys(axes, free)}), (2, {0: free}), (1, {})):
        example = torch.ones(batch, *input_size, dtype=_dtype(network))
        try:
            with torch.no_grad(), _quiet():
                program = torch.export.export(network, (example,), dynamic_shapes=(dynamic,))
            break
        except MemoryError:  # which says nothing of the network
            raise
        except Exception as error:  # whatever the tracer meets in a user's network
            errors.append(error)
    else:
        first = one_line(str(errors[-1]).strip().split("\n")[0])
        raise ValueError(f"the network cannot be exported: {first}") from errors[-1]
    if not _returned(program):
        raise ValueError("the network cannot be exported: it returns no tensor")
    shape = _input_shape(program)
    names = ["batch", "channels", *(f"axis {axis}" for axis in range(1, len(shape) - 1))]
    static = tuple(name for name, n in zip(names, shape, strict=True) if n is not None and name != "channels")
    return program, static


def _returned(program: "torch.export.ExportedProgram") -> list[torch.fx.Node]:
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    return output.all_input_nodes


def _input_shape(program: "torch.export.ExportedProgram") -> list[int | None]:
    """The shape that a program takes, None for an axis that is free."""
    own = program.graph_signature.user_inputs
    (taken,) = (node for node in program.graph.nodes if node.op == "placeholder" and node.name in own)
    # An axis that the network fixes is a number, or a symbol that was found to be one.
    return [int(n) if isinstance(n, int) or n.node.expr.is_number else None for n in taken.meta["val"].shape]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep from the terminal what the tracer has to say, and what the network prints while it is traced."""
    level = logging.getLogger("torch").level
    logging.getLogger("torch").setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger("torch").setLevel(level)


@dataclass(frozen=True)
class Program:
    """A network in a file that runs without this project.

    Attributes:
        content: of the file.
        fixed: the axes of the input that had to stay as in the example ("batch", "axis 1", ...).
        difference: the greatest difference from the converted network on a random input, run from these very bytes; None
            where nothing can run them.
    """

    content: bytes
    fixed: tuple[str, ...]
    difference: float | None

    def notes(self) -> Iterator[str]:
        """What people should know of it."""
        if self.fixed:
            yield f"the program takes only inputs of the size of the example along: {', '.join(self.fixed)}"
        if self.difference is not None:
            yield f"the program, run from its file, differs by at most {self.difference:.2g} on a random input"


def to_pt2(model: nn.Module, input_size: Sequence[int]) -> Program:
    """The network as a ``.pt2`` file, which ``torch.export.load`` reads without this project.

    Raises:
        ValueError: as :func:`exported`.
    """
    program, static = exported(model, input_size)
    stream = io.BytesIO()
    with _quiet():
        torch.export.save(program, stream)
        again = torch.export.load(io.BytesIO(stream.getvalue())).module()  # our own file, made just now
    return Program(stream.getvalue(), static, _difference(model, input_size, program, again))


def to_onnx(model: nn.Module, input_size: Sequence[int]) -> Program:
    """The network as an ONNX file; run once with onnxruntime, if that is there.

    Raises:
        ValueError: as :func:`exported`; or a package is missing, ONNX has no form of the network, or onnxruntime cannot run it.
    """
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"ONNX takes packages that are not there: {', '.join(missing)} (pip install {' '.join(missing)})"
        )
    program, static = exported(model, input_size)
    stream = io.BytesIO()
    try:
        with _quiet():
            made = torch.onnx.export(program, dynamo=True, verbose=False, optimize=True)
            assert made is not None
            made.save(stream)  # type: ignore[arg-type]
    except MemoryError:
        raise
    except Exception as error:  # its own, which tells of torch's issue tracker; what failed is in the one before it
        first = str(error.__cause__ or error).strip().split("\n")[0].partition(" See the stack trace")[0]
        raise ValueError(f"the network cannot be exported: {one_line(first)}") from error
    content, difference = stream.getvalue(), None
    if find_spec("onnxruntime") is not None:
        import onnxruntime  # an extra of its own, not always there

        def run(x: torch.Tensor) -> list[torch.Tensor]:
            try:
                session = onnxruntime.InferenceSession(content)
                return [torch.as_tensor(y) for y in session.run(None, {session.get_inputs()[0].name: x.numpy()})]
            except MemoryError:
                raise
            except Exception as error:  # its own classes: operations that it has not in every number format
                raise ValueError(f"onnxruntime cannot run its program: {one_line(error)}") from error

        difference = _difference(model, input_size, program, run)
    return Program(content, static, difference)


def _difference(
    model: nn.Module,
    input_size: Sequence[int],
    program: "torch.export.ExportedProgram",
    call: Callable[[torch.Tensor], object],
) -> float:
    """Between what the network returns and what its program, called from its file, does."""
    network = copy.deepcopy(model).eval()
    batch = _input_shape(program)[0] or 2
    x = torch.randn(batch, *input_size, dtype=_dtype(network), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, expected = ([y for y in tree_leaves(z) if isinstance(y, torch.Tensor)] for z in (call(x), network(x)))
    ours, theirs = ([tuple(y.shape) for y in tensors] for tensors in (found, expected))
    if ours != theirs:
        raise ValueError(f"the program returns tensors of sizes {ours}, not {theirs} as the network does")
    return max((_furthest(a, b) for a, b in zip(found, expected, strict=True)), default=0.0)


def _furthest(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.where(a == b, 0.0, (a.double() - b.double()).abs()).max()) if a.numel() else 0.0


def _dtype(network: nn.Module) -> torch.dtype:
    return next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)
