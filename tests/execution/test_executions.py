"""The contract of an execution.  A new one is covered once it is entered into ``EXECUTIONS``."""

import re
from collections.abc import Iterator
from functools import cache, partial
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from construct import MHSA, conv_to_mhsa
from construct import errors as room
from construct.attention import EXECUTIONS, smaller_blocks
from construct.errors import NotEnoughMemory
from construct.execution import fused
from construct.execution.shifts import windows
from construct.tokens import TokenGrid
from runs import SMALL, channels_last, convolution_calls, normal, peak_bytes
from truths import exact, excess, layer_of, paper, paper_attention, random_layer
from verify.strategies import Case, cases

MIDDLING: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "2-D": (nn.Conv2d, (8, 8, 3, 1, 1), (4, 8, 16, 16)),
    "depthwise": (nn.Conv2d, (32, 32, 3, 1, 1, 1, 32), (4, 32, 12, 12)),
    "depthwise, a stride": (nn.Conv2d, (32, 32, 5, 2, 2, 1, 32), (4, 32, 32, 32)),
    "1x1": (nn.Conv2d, (64, 128, 1), (8, 64, 12, 12)),
    "many channels": (nn.Conv2d, (512, 64, 1), (8, 512, 12, 12)),
    "stride": (nn.Conv1d, (4, 64, 5, 8), (2, 4, 2000)),
    "transposed": (nn.ConvTranspose3d, (2, 3, 2, 2), (2, 2, 3, 3, 4)),
}
"""Convolutions with inputs large enough for arrays to dominate memory: class, arguments, shape."""


CALLED: dict[str, tuple[Any, tuple[int, ...]]] = {
    "2-D": (lambda: nn.Conv2d(3, 4, 3, padding=1), (3, 4, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (4, 3, 4)),
    "depthwise": (lambda: nn.Conv1d(4, 4, 3, groups=4, padding=1, padding_mode="circular"), (4, 5)),
}
"""Convolutions, and the channels and sizes of an image, for function transforms of a call."""


def same(output: Any, expected: torch.Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


def called_with(layer: MHSA, parameters: dict[str, torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The layer's output for x with these parameters; x; and the parameter that carries the kernel."""
    parameters = {key: p.detach().requires_grad_() for key, p in parameters.items()}
    x = x.detach().requires_grad_()
    return functional_call(layer, parameters, (x,)), x, parameters["w_val"]


@pytest.fixture(params=["usual blocks", "tiny blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make executions that work in blocks use several, although the tests' inputs are small."""
    if request.param == "usual blocks":
        yield
        return
    monkeypatch.setattr(fused, "BLOCK_BYTES", 2**10)
    with smaller_blocks(2):
        yield


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("execution", list(EXECUTIONS))
class TestContract:
    """Requirements for every execution."""

    @pytest.mark.usefixtures("blocks")
    def test_it_computes_the_convolution(self, execution: str):
        """On every geometry, bit for bit on small integers, else within the attention's rounding."""

        @settings(max_examples=settings().max_examples // 2)
        @given(cases(tokens=80))
        def same_function(case: Case) -> None:
            layer = conv_to_mhsa(case.conv, execution=execution)
            with torch.no_grad():
                y = layer(case.x)
            if case.integers:
                assert torch.equal(y.double(), exact(case.conv, case.x))
            else:
                assert excess(case.conv, layer, case.x, y) <= 1

        same_function()

    @pytest.mark.parametrize("silent", ["w_qry", "w_key", "w_key_pos", "u", "v"])
    def test_no_term_of_the_scores_is_lost_when_others_are_zero(self, execution: str, silent: str):
        """Each score tensor in turn is zero; the remaining terms must still have an effect."""
        geometry, size = SMALL["2-D, stride, groups"]
        layer = random_layer(geometry, seed=2)
        layer.execution = execution
        with torch.no_grad():
            getattr(layer, silent).zero_()
            x = normal(1, geometry.in_channels, *size)
            np.testing.assert_allclose(layer(x).numpy(), paper(layer, x), rtol=1e-11, atol=1e-11)

    def test_it_executes_no_convolution(self, execution: str):
        """Forward and backward, as a converted layer and with content, no convolution operator or FFT runs."""
        for conv in (nn.Conv1d(2, 4, 3), nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.ConvTranspose3d(2, 2, 2, 2)):
            x = torch.ones(2, conv.in_channels, *(4,) * (conv.weight.dim() - 2), requires_grad=True)
            assert convolution_calls(lambda conv=conv, x=x: conv(x).sum().backward()).total() >= 2
            for content in (False, True):
                layer = conv_to_mhsa(conv, execution=execution).requires_grad_(content)
                assert not convolution_calls(lambda layer=layer, x=x: layer(x).sum().backward())

    def test_it_refuses_before_allocating_what_does_not_fit(self, execution: str, monkeypatch: pytest.MonkeyPatch):
        """The message gives both figures."""
        layer, length = conv_to_mhsa(nn.Conv1d(64, 64, 3), execution=execution), 2**14
        grid = TokenGrid.of(layer.geometry, (length,))
        x, needed = torch.ones(16, 64, length), EXECUTIONS[execution].memory(layer, 16, grid)
        monkeypatch.setattr(room, "available_bytes", lambda device: needed // 2)
        both, half = re.escape(room.format_bytes(needed)), re.escape(room.format_bytes(needed // 2))
        message = rf"^MHSA: .* needs {both}, and {half} are free on cpu$"

        def refused() -> torch.Tensor:
            with pytest.raises(NotEnoughMemory, match=message):
                EXECUTIONS[execution].run(layer, x, grid)
            return torch.ones(1)  # something that shows in any case

        assert 0 < peak_bytes(refused) < 2**16

    @pytest.mark.parametrize("content", [False, True], ids=["positions", "content"])
    @pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
    @pytest.mark.parametrize("name", list(MIDDLING))
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
    def test_its_memory_is_bounded_by_the_estimate(self, execution, name, dtype, grad, content):
        """The estimate is above the real allocation, and not far above for what takes more than a few blocks."""
        kind, arguments, shape = MIDDLING[name]
        layer = conv_to_mhsa(kind(*arguments, dtype=dtype), execution=execution)
        if content:
            with torch.no_grad():
                for tensor in (layer.w_qry, layer.w_key, layer.u):
                    tensor.fill_(0.01)
        grid = TokenGrid.of(layer.geometry, shape[2:])
        x = normal(*shape).to(dtype)
        with torch.set_grad_enabled(grad):
            estimate = EXECUTIONS[execution].memory(layer, len(x), grid)
            EXECUTIONS[execution].run(layer, x, grid)  # fill the caches that persist between calls
            with mock.patch.object(windows, "KEPT_BYTES", 0):  # except the buffer, which a first call allocates
                real = peak_bytes(lambda: EXECUTIONS[execution].run(layer, x, grid))
        assert real <= estimate <= 16 * real + 2**25

    @pytest.mark.parametrize("name", list(CALLED))
    def test_torch_func_differentiates_and_maps_it(self, execution: str, name: str):
        """Like the convolution: gradients, Jacobians in both modes, per-sample gradients, and ensembles with their own weights."""
        make, shape = CALLED[name]
        conv = make().double()
        layer, x = conv_to_mhsa(conv, execution=execution), normal(2, 2, *shape)
        ours, theirs = ({key: p.detach() for key, p in m.named_parameters()} for m in (layer, conv))
        members = {k: torch.stack([p, 2 * p if k in ("w_val", "b_out") else p]) for k, p in ours.items()}

        def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, module: nn.Module) -> torch.Tensor:
            return functional_call(module, parameters, (x,)).square().sum()

        def first(x: torch.Tensor, module: nn.Module) -> torch.Tensor:
            return module(x).flatten()[:7]

        same(grad(loss)(ours, x[0], layer)["b_out"], grad(loss)(theirs, x[0], conv)["bias"])
        same(grad(loss, 1)(ours, x[0], layer), grad(loss, 1)(theirs, x[0], conv))
        same(jacrev(first)(x[0], layer), jacrev(first)(x[0], conv))
        same(jacfwd(first)(x[0], layer), jacrev(first)(x[0], conv))
        for a, b in zip(jvp(layer, (x[0],), (x[1],)), jvp(conv, (x[0],), (x[1],)), strict=True):
            same(a, b)
        learned = {key: ours[key] for key in ("w_val", "w_out", "b_out")}
        along = {key: normal(*p.shape) for key, p in learned.items()}, x[1]
        of_loss = partial(grad(loss, (0, 1)), module=layer)
        # The Hessian is symmetric, so its product with a vector is the same in forward and reverse mode.
        same(jvp(of_loss, (learned, x[0]), along)[1], vjp(of_loss, learned, x[0])[1](along))
        same(vmap(layer, in_dims=1)(x), vmap(conv, in_dims=1)(x))
        same(vmap(vmap(layer))(x[:, :, None]), vmap(vmap(conv))(x[:, :, None]))
        each = vmap(grad(loss), in_dims=(None, 0, None))
        same(each(ours, x, layer)["b_out"], each(theirs, x, conv)["bias"])
        output = vmap(lambda parameters, x: functional_call(layer, parameters, (x,)))(members, x)
        same(output, torch.stack([conv(x[0]), 2 * conv(x[1])]))
        last = channels_last(x[0])
        output = vmap(lambda parameters: functional_call(layer, parameters, (last,)))(members)
        same(output, torch.stack([conv(last), 2 * conv(last)]))
        for key in ("v", "w_val", "w_out"):  # the second member looks elsewhere, with the same result
            members[key] = torch.stack([ours[key], ours[key].flip(0)])
        output = vmap(lambda parameters, x: functional_call(layer, parameters, (x,)))(
            members | {"b_out": torch.stack([layer.b_out] * 2)}, x
        )
        same(output, torch.stack([conv(x[0]), conv(x[1])]))

    @pytest.mark.parametrize("name", list(CALLED))
    def test_it_can_be_traced(self, execution: str, name: str):
        """By ``torch.jit.trace`` and ``make_fx``, also at another size than that of the trace."""
        make, shape = CALLED[name]
        conv = make()
        layer, x = conv_to_mhsa(conv, execution=execution).requires_grad_(False), normal(2, *shape).float()
        wider = normal(2, shape[0], *(n + 2 for n in shape[1:])).float()
        traced: Any = torch.jit.trace(layer, (x,), check_trace=False)
        for other in (-x, wider):
            same(traced(other), conv(other), 1e-5)
        same(make_fx(layer)(x)(-x), conv(-x), 1e-5)

    @pytest.mark.parametrize("name", list(CALLED))
    def test_tensors_without_numbers_pass_through(self, execution: str, name: str):
        """Fake and meta tensors get the convolution's shape, type, layout and gradients."""
        make, shape = CALLED[name]
        conv, x, mode = make(), normal(2, *shape).float(), FakeTensorMode()
        layer = conv_to_mhsa(conv, execution=execution)
        fakes = {k: mode.from_tensor(p.detach()).requires_grad_(p.requires_grad) for k, p in layer.named_parameters()}
        for form in (torch.contiguous_format, torch.channels_last):
            given = x.contiguous(memory_format=form) if x.dim() == 4 else x
            expected = conv(given)
            for y, image, whole in (
                called_with(layer, fakes, mode.from_tensor(given)),
                called_with(layer, {k: p.to("meta") for k, p in layer.named_parameters()}, given.to("meta")),
            ):
                assert (y.shape, y.dtype, y.stride()) == (expected.shape, expected.dtype, expected.stride())
                derivatives = torch.autograd.grad(y.sum(), [image, whole])
                assert [g.shape for g in derivatives] == [image.shape, whole.shape]
        with pytest.raises(RuntimeError, match=r"^MHSA: "):
            layer.to("meta")(torch.ones(1, shape[0] + 1, *shape[1:], device="meta"))
        layer = conv_to_mhsa(conv, execution=execution)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert layer(mode.from_tensor(x)).shape == expected.shape
        same(layer(x), conv(x), 1e-5)


KINDS = [*product(EXECUTIONS, ("quadratic", "covariance", "relative", "taps"))]
every_kind = pytest.mark.parametrize("execution_and_kind", KINDS, ids="-".join)


@cache
def by_loops(kind: str, name: str, content: bool) -> np.ndarray:
    """The output that every execution must have, by plain loops over the paper's formulas."""
    geometry, size = SMALL[name]
    return paper(layer_of(kind, geometry, content, seed=1, heads=3), normal(2, geometry.in_channels, *size))


@pytest.mark.parametrize("content", [False, True], ids=["positions", "content"])
@pytest.mark.parametrize("name", list(SMALL))
class TestEncodings:
    """Soft heads anywhere, with D_k > D_p, on the smallest grids."""

    @every_kind
    @pytest.mark.usefixtures("blocks")
    def test_it_computes_equations_3_and_6(self, execution_and_kind: tuple[str, str], name: str, content: bool):
        """All score terms agree with the paper's formulas."""
        (execution, kind), (geometry, size) = execution_and_kind, SMALL[name]
        layer = layer_of(kind, geometry, content, seed=1, heads=3)
        layer.execution = execution
        assert layer.w_key_pos.shape[1] > layer.w_key_pos.shape[2]
        x = normal(2, geometry.in_channels, *size)
        with torch.no_grad():
            output, attention = layer(x), layer.attention_probabilities(x)
        # Scores are below 100, so their rounding changes a weight by a relative 1e-14; an omitted term changes it entirely.
        np.testing.assert_allclose(output.numpy(), by_loops(kind, name, content), rtol=1e-11, atol=1e-11)
        if execution == "dense":
            shown = attention.expand(2, -1, -1, -1).numpy()
            np.testing.assert_allclose(shown, paper_attention(layer, x).reshape(shown.shape), rtol=1e-12, atol=1e-12)

    @every_kind
    @pytest.mark.usefixtures("blocks")
    def test_its_gradients_are_the_derivatives(self, execution_and_kind: tuple[str, str], name: str, content: bool):
        """Of everything, by finite differences in float64, with tensors that are passed for this one call."""
        (execution, kind), (geometry, size) = execution_and_kind, SMALL[name]
        layer, lent = (layer_of(kind, geometry, content, seed) for seed in (6, 7))
        layer.execution = execution
        names, tensors = zip(*((key, p) for key, p in lent.named_parameters() if p.requires_grad), strict=True)
        inputs = [t.detach().clone().requires_grad_() for t in (normal(1, geometry.in_channels, *size), *tensors)]
        assert len(names) == (8 if content else 5) + len(layer.offsets)

        def call(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

        gradients = torch.autograd.grad(call(*inputs).square().sum(), inputs)
        assert min(gradient.abs().amax() for gradient in gradients) > 0
        assert torch.autograd.gradcheck(call, inputs, fast_mode=True)


def test_a_head_beyond_the_kernel_is_no_tap_of_a_weight():
    layer = conv_to_mhsa(nn.Conv2d(1, 1, 3))
    layer.v.data[1] = 1024 * torch.tensor([-1.0, 8, -6])
    with pytest.raises(ValueError, match=r"head 1 looks at \(4.0, -3.0\), no tap of kernel \(3, 3\)"):
        _ = layer.weight


def test_each_head_is_evaluated_as_it_allows_and_explain_says_so():
    layer = conv_to_mhsa(nn.Conv2d(1, 1, 3, padding=1))
    assert layer.explain((1, 1, 16, 16)).endswith("; heads here: 9 as shifts")
    with torch.no_grad():
        layer.v[3] *= 0.001
        layer.u[4:6] = 1.0
        layer.w_key[4:7] = 1.0  # the seventh head asks for nothing
    last = layer.explain((1, 1, 16, 16)).splitlines()[-1]
    assert last.startswith("auto")
    assert last.endswith("; heads here: 6 as shifts, 1 by factors, 2 over all keys")
