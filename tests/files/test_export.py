"""Exported formats compute the same function, also at sizes not seen at export, and run without this project."""

import copy
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager

import verify
from commands import Command, contents, names, python
from construct import conv_to_mhsa, convert, load
from construct.attention import MHSA
from construct.execution import traced
from construct.execution.shifts.operator import shifted_sum, shifted_weights
from construct.files.export import export_program, frozen_copy, to_onnx, to_pt2
from runs import channels_last, kernel_gradient, whole_numbers
from truths import excess, permuted
from verify.strategies import Case, cases

EXAMPLES = settings().max_examples


def network(whole: bool = True) -> nn.Sequential:
    """Stride, groups and copying padding; if ``whole``, also a depthwise and a transposed layer."""
    torch.manual_seed(0)
    layers = [
        *(nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Conv2d(4, 4, (1, 3), padding=(0, 2), padding_mode="circular", groups=2),
        *(nn.Conv2d(4, 4, 2, padding="same", groups=4), nn.ConvTranspose2d(4, 2, 2, stride=2)),
    ]
    return nn.Sequential(*layers[: None if whole else 4]).eval()


def flat() -> nn.Module:
    """A network whose linear layer requires one input size."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(3 * 7, 2)).eval()


def within_rounding(output: Any, expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.as_tensor(output), expected, rtol=1e-5, atol=2e-6)


def same_at_any_size(run: Any, model: nn.Module) -> None:
    for shape in ((2, 3, 16, 20), (1, 3, 16, 20), (3, 3, 33, 24)):
        x = torch.randn(shape)
        with torch.no_grad():
            within_rounding(run(x), model(x))


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_pt2_computes_the_network_at_any_size(whole: bool):
    converted = convert(network(whole))
    converted[0].frozen = True  # type: ignore[index, assignment]  an attribute of the user does not stand in the way
    exported = to_pt2(converted, (3, 16, 20))
    assert exported.fixed == ()
    assert exported.difference is not None
    assert exported.difference < 1e-5
    program = torch.export.load(io.BytesIO(exported.content))
    assert not [name for name in program.state_dict if "frozen" in name]
    same_at_any_size(program.module(), network(whole))


@pytest.mark.parametrize(
    "conv", [nn.Conv1d(2, 2, 3), nn.Conv1d(2, 2, 3, groups=2), nn.ConvTranspose2d(2, 1, 3, stride=2)]
)
def test_a_program_has_as_many_nodes_whatever_the_number_of_heads(conv: Any):
    """And it computes the layer, also at other sizes."""
    nodes, wider = set(), copy.deepcopy(conv)
    wider.__init__(conv.in_channels, conv.out_channels, 7, stride=conv.stride, groups=conv.groups)
    for layer in (conv, wider):
        size = (2, *(15,) * len(conv.kernel_size))
        program, fixed = export_program(conv_to_mhsa(layer), size)
        assert fixed == ()
        nodes.add(len(program.graph.nodes))
        x = torch.randn(3, 2, *(n + 4 for n in size[1:]))
        with torch.no_grad():
            within_rounding(program.module()(x), layer(x))
    assert len(nodes) == 1


def test_a_strided_head_alone_is_exported_for_even_and_odd_sizes():
    conv, example = nn.Conv1d(2, 2, 1, stride=2), torch.randn(1, 2, 15)
    free = ({2: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(frozen_copy(convert(conv)), (example,), dynamic_shapes=free)
    for x in (example, torch.randn(1, 2, 20)):
        within_rounding(program.module()(x), conv(x))


@pytest.mark.deep
def test_onnx_computes_the_network_at_any_size():
    program = to_onnx(convert(network()), (3, 16, 20))
    assert program.fixed == ()
    assert program.difference is not None
    assert program.difference < 1e-5
    graph = onnx.load_from_string(program.content).graph
    assert not {node.op_type for node in graph.node} & {"Conv", "ConvTranspose"}
    session = onnxruntime.InferenceSession(program.content)
    name = session.get_inputs()[0].name
    same_at_any_size(lambda x: session.run(None, {name: x.numpy()})[0], network())


@settings(max_examples=2 * EXAMPLES)
@given(cases(tokens=60), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_what_is_traced_computes_the_convolution(case: Case, last: bool, learning: bool, order: random.Random):
    """For every geometry, both layouts and any head order, within the rounding bound; on integers bit for bit.

    (Here it runs untraced, as ordinary tensor code.)
    """
    assume(case.x.dim() == case.conv.weight.dim() and len(case.x))
    layer = conv_to_mhsa(case.conv)
    layer = permuted(layer, order.sample(range(layer.heads), layer.heads))
    x = (channels_last(case.x) if last else case.x).clone().requires_grad_(learning)  # in the same layout
    for program in (layer, frozen_copy(layer)):  # as torch.compile and as torch.export trace it
        assert isinstance(program, MHSA)
        with torch.set_grad_enabled(learning):
            output = traced.run_traced(program, x, layer.geometry)
        assert output is not None
        assert excess(case.conv, layer, case.x, output.detach()) <= 1
        if case.integers:
            assert torch.equal(output, case.conv(case.x))
        if case.integers and learning:
            again, wide = case.x.double().clone().requires_grad_(), copy.deepcopy(case.conv).double()
            (ours,), (theirs,) = (torch.autograd.grad(y.sum(), at) for y, at in ((output, x), (wide(again), again)))
            assert torch.equal(ours, theirs.to(x.dtype))


@pytest.mark.deep
@settings(max_examples=EXAMPLES // 4)
@given(cases(tokens=60))
def test_every_geometry_can_be_exported(case: Case):
    if case.x.dim() != case.conv.weight.dim() or not len(case.x):
        return  # unbatched calls and empty batches are not exported
    layer = conv_to_mhsa(case.conv)
    exported = to_pt2(layer, tuple(case.x.shape[1:]))
    with torch.no_grad():
        output = torch.export.load(io.BytesIO(exported.content)).module()(case.x)
    assert excess(case.conv, layer, case.x, output) <= 1
    if case.integers:
        assert torch.equal(output, case.conv(case.x))


def test_a_pt2_file_needs_torch_alone(tmp_path):
    """It loads and runs in a process that cannot import this project."""
    path = tmp_path / "net.pt2"
    path.write_bytes(to_pt2(convert(network()), (3, 16, 20)).content)
    code = f"""
import sys
class No:
    def find_spec(self, name, *_):
        if name.split('.')[0] in ('construct', 'verify'):
            raise ImportError(name)
sys.meta_path.insert(0, No())
import torch
print(tuple(torch.export.load({str(path)!r}).module()(torch.ones(1, 3, 18, 22)).shape))
"""
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout.strip().startswith("(1, 2,"), done.stderr


def test_a_pt2_file_keeps_all_eight_tensors():
    """Exported weights can still be certified."""
    conv = nn.Conv2d(2, 3, 3, padding=1)
    layer = conv_to_mhsa(conv)
    program = torch.export.load(io.BytesIO(to_pt2(layer, (2, 8, 8)).content))
    again = conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1))
    again.load_state_dict(program.state_dict)
    ours, theirs = (verify.certify(conv, attention, grid=(8, 8)) for attention in (again, layer))
    assert ours.verdict.name == "PROVED"
    assert ours.mhsa_sha256 == theirs.mhsa_sha256


def test_what_cannot_be_traced_is_named():
    net = nn.Sequential(nn.ReLU(), conv_to_mhsa(nn.Conv1d(1, 1, 3), alpha=1.0))
    with pytest.raises(ValueError, match=r"^1: MHSA: a head without content that is not a shift"):
        to_pt2(net, (1, 9))
    layer = conv_to_mhsa(nn.Conv1d(1, 1, 3), encoding="parabola")
    with torch.no_grad():
        layer.u.fill_(1)
        layer.w_key.fill_(1)
    with pytest.raises(ValueError, match=r"^the layer: MHSA: content beside the parabola encoding cannot be traced"):
        to_pt2(layer, (1, 9))


class Returning(nn.Module):
    def __init__(self, wrap: Any):
        super().__init__()
        self.wrap, self.first, self.second = wrap, nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 3)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.first(x)
        return self.wrap(y, self.second(y))


RETURNED = {
    "tuple": lambda y, z: (y, z),
    "dict": lambda y, z: {"y": y, "more": [z, 3, None]},
    "mask": lambda y, z: (y > 0, z.flatten(1)),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", RETURNED)
def test_networks_that_return_several_tensors_are_exported(name: str):
    model = Returning(RETURNED[name]).eval()
    for export in (to_pt2, to_onnx) if name == "tuple" else (to_pt2,):
        exported = export(convert(model), (1, 6, 6))
        assert exported.difference is not None
        assert exported.difference < 1e-5
    again, x = (
        torch.export.load(io.BytesIO(to_pt2(convert(model), (1, 6, 6)).content)).module(),
        torch.randn(3, 1, 8, 7),
    )
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), rtol=1e-5, atol=2e-6)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("wrap", "what"),
    [(lambda y, z: (y, 3), r"node return \(.*, 3\)\.$"), (lambda y, z: torch.linalg.svdvals(y), "_linalg_svd")],
    ids=["a number", "an operation"],
)
def test_what_onnx_has_no_form_of_is_told_in_one_line(wrap: Any, what: str):
    with pytest.raises(ValueError, match=f"^the network cannot be exported: .*{what}") as refusal:
        to_onnx(convert(Returning(wrap)), (1, 6, 6))
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("step", ["torch.export.export", "torch.onnx.export", "onnxruntime.InferenceSession"])
def test_want_of_memory_says_nothing_of_the_network(step: str, monkeypatch: pytest.MonkeyPatch):
    def refuse(*given: object, **more: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(step, refuse)
    with pytest.raises(MemoryError, match="no room"):
        to_onnx(convert(nn.Conv2d(1, 2, 3)), (1, 6, 6))


def test_a_network_that_returns_no_tensor_is_no_program():
    with pytest.raises(ValueError, match="returns no tensor"):
        to_pt2(convert(Returning(lambda y, z: None)), (1, 6, 6))


class Sized(nn.Module):
    """A network that uses its output's size in a way that needs numbers, not symbols."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(1, 1, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x, output_size=[2 * n for n in x.shape[2:]])


class Counting(nn.Module):
    """A network that works only on one example at a time."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x) * [0.0, 1.0][len(x)]


@pytest.mark.parametrize(
    ("net", "size", "fixed"),
    [(Sized(), (1, 6, 7), {2, 3}), (Counting(), (1, 6, 7), {0}), (flat(), (2, 7), {2})],
)
def test_what_cannot_be_free_is_as_in_the_example_and_it_is_said(net: nn.Module, size: Any, fixed: set[int]):
    exported = to_pt2(convert(net), size)
    axes = {int(axis.rpartition("'s axis ")[2]) for axis in exported.fixed}
    assert fixed <= axes
    assert any("takes only inputs of the size" in note for note in exported.notes())
    x = torch.randn(1 if 0 in axes else 5, *size)
    with torch.no_grad():
        within_rounding(torch.export.load(io.BytesIO(exported.content)).module()(x), net(x))


class Printing(nn.Conv1d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        print("on my way")
        return super().forward(input) * float(self.weight.data.mul_(1).sum())


def test_the_terminal_is_spared_what_a_tracer_says(capfd: pytest.CaptureFixture[str]):
    with pytest.raises(ValueError, match="cannot be exported"):
        to_pt2(nn.Sequential(Printing(1, 1, 1), conv_to_mhsa(nn.Conv1d(1, 1, 1))), (1, 4))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("last", [False, True], ids=["to channels first", "to channels last"])
@pytest.mark.parametrize("given", [False, True], ids=["from channels first", "from channels last"])
def test_the_operator_has_the_strides_of_its_fake_tensor(given: bool, last: bool, step: int):
    """Where a product comes transposed, a compiled ResNet-50 failed: with more output channels than queries, or fewer."""
    for side in (16, 64):
        size = [side * step, side * step]
        x, w = torch.randn(1, 128, *size), torch.randn(1, 1, 128, 512)
        arguments = (channels_last(x) if given else x, w, None, [0, 0, step, step, *size, side, side], False, last)
        torch.library.opcheck(shifted_sum, arguments, test_utils="test_faketensor")


COMPILED: dict[str, tuple[Any, tuple[int, ...]]] = {
    "3x3": (lambda: nn.Conv2d(8, 6, 3, padding=1), (9, 8)),
    "groups, a stride": (lambda: nn.Conv2d(8, 6, 3, stride=2, padding=1, groups=2), (9, 8)),
    "transposed": (lambda: nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1), (5, 8)),
    "reflect": (lambda: nn.Conv2d(8, 6, 3, padding=1, padding_mode="reflect"), (9, 8)),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, groups=8), (9, 8)),
    "1-D": (lambda: nn.Conv1d(8, 6, 5), (30,)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_layer_is_one_operator_with_gradients(name: str, last: bool, dynamic: bool):
    """But for depthwise layers, whose slices a compiler fuses.  Exact on integers."""
    make, size = COMPILED[name]
    conv, operators = whole_numbers(make()), list[str]()

    def noting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        operators.extend(str(node.target) for node in graph.graph.nodes)
        return aot_eager(graph, inputs)

    layer, x = conv_to_mhsa(conv), torch.randint(-4, 5, (2, 8, *size)).float()
    x = (channels_last(x) if last else x).requires_grad_()
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=noting, dynamic=dynamic)
    output, expected = compiled(x), conv(x)
    assert torch.equal(output, expected)
    assert any("shifted_sum" in operator for operator in operators) == (name != "depthwise")
    pull = torch.arange(expected.numel()).remainder(5).sub(2).view_as(expected).float()
    ours = torch.autograd.grad(output, [x, layer.b_out, layer.w_val, layer.w_out], pull)
    theirs = torch.autograd.grad(expected, [x, conv.bias, conv.weight], pull)
    for one, other in zip((*ours[:2], kernel_gradient(layer, *ours[2:])), theirs, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_the_operators_keep_the_rules_of_torch(last: bool):
    """Their results alias no input, fake tensors have their shapes and strides, and derivatives of both orders are right."""
    x, y = (torch.randn(2, n, 5, 6, dtype=torch.float64) for n in (4, 3))
    x, y = (channels_last(t) if last else t for t in (x, y))
    w, bias = torch.randn(2, 1, 4, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    where = [-1, 0, 0, 1, 1, 1, 5, 6, 5, 6]
    x, y, w, bias = (t.requires_grad_() for t in (x, y, w, bias))
    calls: tuple[tuple[Any, Any], ...] = (
        (shifted_sum, (x, w, bias, where, False, last)),
        (shifted_sum, (y, w, None, where, True, last)),
        (shifted_weights, (x, y, where, 1)),
    )
    for operator, arguments in calls:
        torch.library.opcheck(operator, arguments)
        assert torch.autograd.gradgradcheck(operator, arguments, fast_mode=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@torch.no_grad()
def test_layers_of_one_geometry_are_compiled_each_for_itself():
    """The constants of one layer's trace (where its heads look, which factor is the identity) do not apply to the others."""
    torch._dynamo.reset()
    conv = nn.Conv2d(3, 3, 3, padding=1)
    layers = [conv_to_mhsa(conv), conv_to_mhsa(nn.Conv2d(3, 3, 3, padding=1), order=range(8, -1, -1))]
    layers += [conv_to_mhsa(conv, alpha=0.5), conv_to_mhsa(conv)]
    layers[3].w_val.data, layers[3].w_out.data = layers[3].w_out.data, layers[3].w_val.data
    x, compiled = torch.randn(1, 3, 6, 6), [torch.compile(layer, backend="eager") for layer in layers]
    for layer, run in zip(layers, compiled, strict=True):
        torch.testing.assert_close(run(x), layer(x))
    in_turn = torch.compile(lambda layer, x: layer(x), backend="eager")
    for layer in layers:
        torch.testing.assert_close(in_turn(layer, x), layer(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_layer_compiled_without_gradients_follows_what_it_learns_since():
    """The factor that was the identity then learns too, whether or not it was frozen at first."""
    torch._dynamo.reset()
    layer, x = conv_to_mhsa(nn.Conv2d(3, 4, 3)), torch.randn(1, 3, 6, 6)
    compiled = torch.compile(layer, backend="eager")
    for learning in (False, True):
        for name in ("w_val", "w_out"):
            layer.get_parameter(name).requires_grad_(learning)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), layer(x))
    compiled(x).square().sum().backward()
    torch.optim.SGD([layer.w_val, layer.w_out], lr=0.1).step()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))


TRANSFORMS: dict[str, Callable[[MHSA], Callable[[Tensor], Tensor]]] = {
    "vmap": torch.vmap,
    "vmap, channels last": lambda layer: (
        lambda x: torch.vmap(layer)(x[None].movedim(2, -1).contiguous().movedim(-1, 2))
    ),
    "gradients of each": lambda layer: torch.vmap(torch.func.grad(lambda x: layer(x).square().sum())),
    "jvp": lambda layer: lambda x: torch.func.jvp(layer, (x,), (x,))[1],
    "other tensors": lambda layer: (
        lambda x: (
            torch.func.functional_call(layer, {"w_val": layer.w_val * 2}, (x,))
            + torch.func.functional_call(layer, {"w_out": layer.w_out * 2}, (x,))
        )
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_functions_are_compiled_with_a_layer(name: str):
    """What a transform wraps has no numbers, and torch maps over channels first alone."""
    torch._dynamo.reset()
    function = TRANSFORMS[name](conv_to_mhsa(nn.Conv2d(3, 2, 3)).requires_grad_(False))
    x = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(torch.compile(function, backend="eager")(x), function(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("soft", [0, slice(None)], ids=["one", "all"])
def test_a_layer_that_is_not_compiled_runs_as_it_is(soft: int | slice):
    """With gradients, and also once its heads are sharp."""
    torch._dynamo.reset()
    layer, x = conv_to_mhsa(nn.Conv2d(3, 2, 3)), torch.randn(2, 3, 6, 6)
    layer.v.data[soft] /= 1000
    compiled = torch.compile(layer, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), layer(x))
        assert compiled(x).requires_grad
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), layer(x))
        layer.v.data[soft] *= 1000


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiling_says_what_it_freezes_and_what_it_cannot(caplog: pytest.LogCaptureFixture):
    traced._say_once.cache_clear()
    for alpha, words in ((1024.0, "and compile again"), (1.0, "not compiled, run as it is")):
        torch._dynamo.reset()
        layer = conv_to_mhsa(nn.Conv1d(2, 2, 3), alpha=alpha)
        x = torch.randn(1, 2, 9)
        compiled = torch.compile(layer, backend="eager")
        torch.testing.assert_close(compiled(x), layer(x))
        assert words in caplog.text


def test_the_command_writes_every_format(from_conv: Command):
    """By --format or by the name, each with its own certificate; it replaces only files that it wrote."""
    conv = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU()).eval()
    torch.save(conv, "m.pt")
    expected = {"m.pt"}
    by_format = [["--format", form] for form in ("pt", "safetensors", "pt2")]
    for options in (*by_format, ["-o", "m.mhsa.safetensors", *by_format[1]], ["-o", "m.mhsa.onnx"]):
        before, form = contents(), options[-1].rpartition(".")[2]
        out = from_conv.prints("m.pt", "--input-size", 2, 6, 6, *options)
        assert ("differs by at most" in out) == (form in ("pt2", "onnx"))
        expected |= {f"m.mhsa.{form}", "m.mhsa.json" if form == "pt" else f"m.mhsa.{form}.json"}
        assert names() == expected
        assert before.items() <= contents().items()
    x = torch.randn(1, 2, 6, 6)
    layer = load("m.mhsa.safetensors").get_submodule("0")
    program = torch.export.load("m.mhsa.pt2").module()
    session = onnxruntime.InferenceSession("m.mhsa.onnx")
    with torch.no_grad():
        for output in (layer(x).relu(), program(x), *session.run(None, {session.get_inputs()[0].name: x.numpy()})):
            within_rounding(output, conv(x))
    for form, document in (("pt", "m.mhsa.json"), ("safetensors", "m.mhsa.safetensors.json")):
        assert verify.check(document, "m.pt", f"m.mhsa.{form}").verdict.name == "PROVED"


def test_torch_s_own_export_takes_a_converted_network() -> None:
    """Strictly as is, or as a copy that stores where its heads look; otherwise it is refused, with a hint."""
    net = convert(nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 3, 3, groups=3))).eval()
    x = torch.randn(1, 2, 7, 8)
    with torch.no_grad():
        expected = net(x)
        with pytest.raises(NotImplementedError, match=r"strict=True, or construct\.files\.export\.frozen_copy"):
            torch.export.export(net, (x,))
        for program in (torch.export.export(net, (x,), strict=True), torch.export.export(frozen_copy(net), (x,))):
            torch.testing.assert_close(program.module()(x), expected)
        assert torch.equal(net(x), expected)


NETWORKS_OF_WORDS = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.conv = nn.Embedding(20, 4), nn.Conv1d(4, 3, 3, padding=1)

    def forward(self, words):
        return self.conv(self.embedding(words).transpose(1, 2)).amax(2)

class Both(Words):
    def forward(self, words, scale):
        return super().forward(words) * scale
"""


@pytest.mark.parametrize("form", ["pt2", "onnx"])
@pytest.mark.parametrize("how", ["tensor", "tuple", "dict"])
def test_a_network_that_takes_no_image_is_exported_from_an_example(how: str, form: str, from_conv: Command) -> None:
    scope: dict[str, Any] = {}
    exec(NETWORKS_OF_WORDS, scope)
    net = scope["Words" if how == "tensor" else "Both"]().eval()
    Path("net.py").write_text(NETWORKS_OF_WORDS)
    torch.save(net.state_dict(), "m.pt")
    words = torch.arange(12).view(2, 6)
    call: Any = {"tensor": (words,), "tuple": (words, torch.arange(2.0, 5.0)), "dict": (words, torch.ones(2, 1))}[how]
    keywords = dict(zip(("words", "scale"), call, strict=False))
    torch.save({"tensor": words, "tuple": call, "dict": keywords}[how], "x.pt")
    options = ("m.pt", "--model-file", f"net.py:{type(net).__name__}", "--format", form)
    # Every remedy is followed in turn.
    assert "(give --input-size C S1 ... Sd, or --example-inputs FILE)" in from_conv.refuses(*options)
    line = from_conv.refuses(*options, "--input-size", 4, 6)
    assert line.endswith("(give another --input-size, or --example-inputs)")
    out = from_conv.prints(*options, "--example-inputs", "x.pt")
    assert "the program, run from its file, differs by at most" in out
    with torch.no_grad():
        expected = net(*call)
        if form == "pt2":
            exported = torch.export.load("m.mhsa.pt2")
            assert exported.example_inputs is None  # the user's data stay out of the file
            program = exported.module()
            results = [program(**keywords) if how == "dict" else program(*call)]
        else:
            session = onnxruntime.InferenceSession("m.mhsa.onnx")
            names_of = [node.name for node in session.get_inputs()]
            results = session.run(None, {name: x.numpy() for name, x in zip(names_of, call, strict=True)})
    torch.testing.assert_close(torch.as_tensor(results[0]), expected)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_network_compiles_whole_and_its_gradients_are_right():
    """There is no graph break, and one trace serves many sizes."""
    torch._dynamo.reset()
    layers = nn.Conv2d(3, 4, 2, stride=2), nn.ReLU(), nn.Conv2d(4, 4, (1, 3), groups=4), nn.Conv2d(4, 2, 3, padding=1)
    original = nn.Sequential(*layers)
    converted = convert(original)
    compiled = torch.compile(converted, fullgraph=True, backend="aot_eager", dynamic=True)
    for form, learning in ((torch.contiguous_format, True), (torch.channels_last, True), (torch.channels_last, False)):
        for shape in ((2, 3, 16, 20), (3, 3, 26, 22)):
            x = torch.randn(shape).contiguous(memory_format=form)
            with torch.set_grad_enabled(learning):
                y = compiled(x)
            assert y.is_contiguous(memory_format=form)
            within_rounding(y.detach(), original(x).detach())
    x = torch.randn(2, 3, 16, 20)
    parameters = [p for p in converted.parameters() if p.requires_grad]
    ours = torch.autograd.grad(compiled(x).square().sum(), parameters)
    theirs = torch.autograd.grad(converted(x).square().sum(), parameters)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_compiler_that_does_not_know_sizes_is_given_as_few_operations_whatever_the_number_of_heads():
    operations = {}

    def counting(graph: torch.fx.GraphModule, examples: Any) -> Any:
        operations[kernel] = len(graph.graph.nodes)
        return graph.forward

    for kernel in (2, 5, 7):
        torch._dynamo.reset()
        layer = conv_to_mhsa(nn.Conv2d(8, 8, kernel)).requires_grad_(False)
        compiled = torch.compile(layer, fullgraph=True, backend=counting, dynamic=True)
        for size in (12, 15):
            x = torch.randn(1, 8, size, size + 1)
            torch.testing.assert_close(compiled(x), layer(x))
    assert len(set(operations.values())) == 1
