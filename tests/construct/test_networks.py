"""Whole networks: every convolution is replaced, each layer agrees on real activations, and nothing else changes."""

import copy
import logging
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrizations, prune

import construct
from commands import python
from construct import MHSA, UnsupportedLayer
from networks import NETWORKS
from runs import convolution_calls
from verify.samples.sampling import check_on_activations

HERE = Path(__file__).parent


convert: Any = construct.convert
"""Typed as Any, because nn.Module's children are unknown to the type checker."""


def pairs_of(model, net):
    """path → (convolution, its attention layer), for every convolution registered in the original."""
    return {path: (conv, net.get_submodule(path)) for path, conv in model.named_modules() if isinstance(conv, _ConvNd)}


def flipped(model, path):
    """The network with one kernel flipped, which differs only by a convention."""
    broken = copy.deepcopy(model)
    weight = broken.get_submodule(path).weight
    with torch.no_grad():
        weight.copy_(weight.flip(tuple(range(2, weight.dim()))))
    return broken


def judge(name):
    """Convert one of the NETWORKS and compare it with the original."""
    network = NETWORKS[name]
    model, x = network.ready()
    net = convert(model)
    pairs = pairs_of(model, net)
    outputs: dict[str, Tensor] = {}
    with torch.no_grad():
        before = convolution_calls(lambda: outputs.update(original=model(x)))
        after = convolution_calls(lambda: outputs.update(converted=net(x)))
        turned = flipped(model, next(path for path, (conv, _) in pairs.items() if max(conv.kernel_size) > 1))(x)
    assert (sum(before.values()), after) == (network.convolutions, {})
    assert not any(isinstance(layer, _ConvNd) for layer in net.modules())
    layers = sum(isinstance(layer, MHSA) for layer in net.modules())
    checks = check_on_activations(model, pairs, [x], "a random input")
    assert layers == len(checks) == sum(check.calls for check in checks.values()) == network.convolutions
    for path, check in checks.items():
        assert check.verdict.name == "CHECKED", f"{path}: {check.verdict}"
        assert check.discrepancy.compared > 0
        assert 0 <= check.ratio <= 1
    expected, output = outputs["original"], outputs["converted"]
    assert output.shape == expected.shape
    scale = expected.abs().max()
    assert (output - expected).abs().max() <= 1e-5 * scale
    assert (turned - expected).abs().max() > 1e-3 * scale  # so that agreement of logits is meaningful


def verdicts(model, net, x):
    """path → the name of the verdict on each layer, on the activations for an input."""
    checks = check_on_activations(model, pairs_of(model, net), [x], "an input")
    return {path: check.verdict.name for path, check in checks.items()}


def peak_mib():
    """The peak memory of this process; not ``getrusage``'s, which a child inherits from its parent."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) // 1024


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "resnet18"])
def test_every_convolution_of_a_network_becomes_attention_that_computes_the_same(name):
    judge(name)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of one program is read there")
def test_resnet18_in_little_memory():
    """In its own process, so that the peak belongs to this conversion and no other test."""
    places = [str(HERE.parent / "support"), str(HERE)]
    done = python(
        "-c", f"import sys; sys.path[:0] = {places}; from test_networks import *; judge('resnet18'); print(peak_mib())"
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1024


def test_a_single_wrong_layer_is_refuted_where_it_is():
    model, x = NETWORKS["grouped"].ready()
    net = convert(model)
    pairs = pairs_of(model, net)
    path = next(path for path, (conv, _) in pairs.items() if conv.groups > 1)
    layer = pairs[path][1]
    with torch.no_grad():
        layer.w_val[[0, 1]] = layer.w_val[[1, 0]]  # encodings permuted against values
    names = verdicts(model, net, x)
    assert names.pop(path) == "REFUTED"
    assert set(names.values()) == {"CHECKED"}


def storages(model):
    return {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers()) if t.numel()}


def small(seed=0) -> Any:
    """Three convolutions of three kinds between other layers, (N, 3, 9, 8) → (N, 5)."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 6, 2, stride=2, groups=3, bias=False), nn.ReLU()),
        *(nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(4, 5),
    )


def image(batch=2, dtype=torch.float32, seed=1):
    return torch.randn(batch, 3, 9, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def test_the_original_is_not_touched_and_shares_nothing():
    model, x = small().eval(), image()
    kept, expected = copy.deepcopy(model.state_dict()), model(x)
    modules = list(model.modules())
    net = convert(model)
    assert all(module is before for module, before in zip(model.modules(), modules, strict=True))
    assert all(module is not other for module in net.modules() for other in modules)
    assert not storages(model) & storages(net)
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.zero_()
    assert all(torch.equal(now, kept[name]) for name, now in model.state_dict().items())
    assert model.state_dict().keys() == kept.keys()
    assert torch.equal(model(x), expected)


class Shared(nn.Module):
    """One convolution under three names, called at two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 3, 3, padding=1)
        self.alias = self.head
        self.also = nn.ModuleList([self.head])
        self.plain: list[Any] = [self.head]
        self.plain.append(self.plain)  # a list may contain itself

    def forward(self, x: Tensor) -> Tensor:
        return self.alias(self.also[0](self.head(x))[..., ::2]) + self.plain[0](x)[..., ::2]


@pytest.mark.nasty(27)
def test_a_module_used_in_two_places_stays_one_module():
    """And every call is checked, also at another size, where other places read padding."""
    model, x = Shared(), image()
    net = convert(model)
    assert isinstance(net.head, MHSA)
    assert net.head is net.alias is net.also[0] is net.plain[0]
    assert len(list(net.parameters())) == 8
    checks = check_on_activations(model, {"head": (model.head, net.head)}, [x], "an image")
    assert (checks["head"].calls, checks["head"].grid) == (4, (9, 8))
    assert checks["head"].verdict.name == "CHECKED"


class Tied(nn.Module):
    """One kernel in two convolutions of different geometry, one bias in two others."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 3, stride=2, dilation=2, padding=2)
        self.coarse.weight = self.fine.weight
        self.other = nn.Conv2d(3, 4, 1)
        self.other.bias = self.fine.bias

    def forward(self, x: Tensor) -> Tensor:
        return (self.fine(x) + self.other(x))[..., ::2, ::2] + self.coarse(x)


def test_tied_weights_stay_tied_in_training():
    model, x = Tied(), image()
    net = convert(model)
    assert net.fine.w_val is net.coarse.w_val
    assert net.fine.w_out is net.coarse.w_out
    assert net.fine.b_out is net.other.b_out
    assert net.fine.b_out is not net.coarse.b_out
    torch.testing.assert_close(net(x), model(x))
    before = net.fine.weight.detach()
    net(x).square().mean().backward()
    torch.optim.SGD(net.parameters(), 0.1).step()
    assert not torch.equal(net.fine.weight, before)
    assert torch.equal(net.fine.weight, net.coarse.weight)
    for cast in (net.half(), copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert cast.fine.w_val is cast.coarse.w_val


def test_parametrized_convolutions_of_one_shape_are_not_mistaken_for_tied_ones():
    """Their weights are recomputed at each access, so Python may give two of them the same id."""
    model = nn.Sequential(*(parametrizations.weight_norm(nn.Conv2d(3, 3, 3, padding=1)) for _ in range(6))).eval()
    net, x = convert(model), image()
    assert not convolution_calls(net, x)
    assert len({id(layer.w_val) for layer in net}) == 6
    assert verdicts(model, net, x) == {str(i): "CHECKED" for i in range(6)}


@pytest.mark.nasty(30)
def test_frozen_stays_frozen():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1, bias=False))
    model[1].requires_grad_(False)
    assert isinstance(model[2].bias, Tensor)
    model[2].bias.requires_grad_(False)
    trained = [[tensor.requires_grad for tensor in (a.w_val, a.w_out, a.b_out)] for a in convert(model)]
    assert trained == [[True, True, True], [False, False, False], [True, True, False], [True, True, False]]
    for layer in convert(model):
        assert not any(getattr(layer, name).requires_grad for name in ("w_qry", "w_key", "w_key_pos", "u", "v"))
    with pytest.warns(FutureWarning):
        normed = nn.utils.weight_norm(nn.Conv2d(2, 3, 3))
    prune.l1_unstructured(normed, "weight_v", 0.3)  # writes a weight_v that learns
    assert not construct.conv_to_mhsa(normed.requires_grad_(False)).w_val.requires_grad


class OwnForward(nn.Conv2d):
    def forward(self, input):
        return 2 * super().forward(input)


class OwnWeight(nn.Conv2d):
    """Standardises its weight by a property in place of the parameter."""

    weight = property(lambda self: self._parameters["weight"] - self._parameters["weight"].mean())  # type: ignore[assignment]


class OwnCall(nn.Conv2d):
    def __call__(self, input):
        return -super().__call__(input)


class OwnPadding(nn.ConvTranspose2d):
    def _output_padding(self, *args, **kwargs):
        return [0, 0]


class Strange(Tensor):
    """A subclass whose numbers may be elsewhere, like DTensor, quantised or fake tensors."""

    def __deepcopy__(self, memo):
        return self


class TakesOver(nn.Parameter):
    """A parameter that overrides the operations on it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            return 2 * result if func is torch.nn.functional.conv2d else result


class OwnConvForward(nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight * 2, bias)


class LookalikeConv2d(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel_size, self.weight = (1, 1), nn.Parameter(torch.ones(1, 1, 1, 1))


def conv_with(**attributes):
    """A Conv2d(2, 4, 3) in two groups whose attributes are overwritten."""
    conv = nn.Conv2d(2, 4, 3, padding=1, groups=2, padding_mode=attributes.pop("mode", "zeros"))
    for name, value in attributes.items():
        setattr(conv, name, value)
    return conv


def conv_filled(value, name="weight"):
    conv = nn.Conv2d(2, 4, 3)
    with torch.no_grad():
        getattr(conv, name).view(-1)[-1] = value
    return conv


def doubles(module, args, output=None):
    """A hook that doubles, which no proof about the layer would cover."""
    return args if output is None else 2 * output


def conv_hooked(register):
    conv = nn.Conv2d(2, 4, 3)
    getattr(conv, register)(doubles)
    return conv


def with_own_weight():
    conv = nn.Conv2d(2, 4, 3)
    conv.__class__ = OwnWeight
    return conv


def with_parameter(weight):
    conv = nn.Conv2d(2, 4, 1)
    conv._parameters["weight"] = weight
    return conv


# name → (a factory, a pattern for the reason)
UNCONVERTIBLE = {
    "own_forward": (lambda: OwnForward(2, 4, 3), "a forward of its own"),
    "own_conv_forward": (lambda: OwnConvForward(2, 4, 3), "a _conv_forward of its own"),
    "own_weight": (with_own_weight, "its class has a weight of its own"),
    "own_call": (lambda: OwnCall(2, 4, 3), "its class has a __call__ of its own"),
    "own_output_padding": (lambda: OwnPadding(2, 4, 3), "its class has a _output_padding of its own"),
    "strange_tensor": (lambda: with_parameter(torch.rand(4, 2, 1, 1).as_subclass(Strange)), "a Strange, not a plain tensor"),
    "tensor_taking_over": (lambda: with_parameter(TakesOver(torch.rand(4, 2, 1, 1))), "a TakesOver, not a plain tensor"),
    "instance_forward": (lambda: conv_with(forward=lambda input: input), "its forward is replaced on the instance"),
    "instance_conv_forward": (lambda: conv_with(_conv_forward=lambda *args: args[0]), "_conv_forward is replaced"),
    "lookalike": (LookalikeConv2d, "not one of torch's convolutions"),
    "lazy": (lambda: nn.LazyConv2d(4, 3), "run one batch"),
    "meta": (lambda: nn.Conv2d(2, 4, 3, device="meta"), "meta device; load real weights first"),
    "complex": (lambda: nn.Conv2d(2, 4, 3, dtype=torch.complex64), "its weight is torch.complex64, not one of float16"),
    "integers": (lambda: conv_with(weight=nn.Parameter(torch.ones(4, 1, 3, 3).int(), requires_grad=False)), "torch.int32"),
    "nan": (lambda: conv_filled(math.nan), "weight has entries that are not finite"),
    "infinite": (lambda: conv_filled(-math.inf), "weight has entries that are not finite"),
    "nan_bias": (lambda: conv_filled(math.nan, "bias"), "bias has entries that are not finite"),
    "mixed_types": (lambda: conv_with(bias=nn.Parameter(torch.ones(4).double())), "differ in type"),
    "forward_hook": (lambda: conv_hooked("register_forward_hook"), "it has a forward hook (doubles)"),
    "forward_pre_hook": (lambda: conv_hooked("register_forward_pre_hook"), "it has a forward pre-hook (doubles)"),
    "backward_hook": (lambda: conv_hooked("register_full_backward_hook"), "it has a backward hook (doubles)"),
    "backward_pre_hook": (lambda: conv_hooked("register_full_backward_pre_hook"), "it has a backward pre-hook (doubles)"),
    "kernel_size_lies": (lambda: conv_with(kernel_size=(3, 1)), "kernel_size says (3, 1)"),
    "in_channels_lies": (lambda: conv_with(in_channels=4), "in_channels says 4"),
    "out_channels_lies": (lambda: conv_with(out_channels=2), "out_channels says 2"),
    "transposed_lies": (lambda: conv_with(transposed=True), "transposed"),
    "groups_zero": (lambda: conv_with(groups=0), "groups is 0"),
    "groups_do_not_divide": (lambda: conv_with(groups=3), "3 groups do not divide"),
    "stride_broken": (lambda: conv_with(stride=(1.5, 1)), "stride is (1.5, 1)"),
    "stride_long": (lambda: conv_with(stride=(1, 1, 1)), "stride is (1, 1, 1)"),
    "padding_word": (lambda: conv_with(padding="full"), "padding is 'full'"),
    "private_pad_list": (lambda: conv_with(mode="reflect", _reversed_padding_repeated_twice=[1] * 3), "it pads by [1, 1, 1]"),
    "padding_against_list": (lambda: conv_with(mode="circular", padding=(2, 1)), "it pads by [1, 1, 1, 1]"),
    "bias_short": (lambda: conv_with(bias=nn.Parameter(torch.ones(3))), "bias has shape (3,)"),
    "axes": (lambda: conv_with(weight=nn.Parameter(torch.ones(4, 1, 3))), "weight has 3 axes"),
}  # fmt: skip


@pytest.mark.nasty(22, 23, 24, 28)
def test_one_error_lists_everything_that_cannot_be_converted(caplog):
    children: dict[str, nn.Module] = {name: make() for name, (make, _) in UNCONVERTIBLE.items()}
    children |= {"good": nn.Conv2d(2, 4, 3), "deep": nn.Sequential(OwnForward(1, 1, 1), nn.Conv1d(1, 1, 1))}
    model = nn.ModuleDict(children)
    modules, keys = list(model.modules()), list(model.state_dict())
    with pytest.raises(UnsupportedLayer) as caught:
        convert(model)
    rows = {row.path: row for row in caught.value.rows}
    assert rows.keys() == {*UNCONVERTIBLE, "deep.0"}
    assert len(caught.value.rows) == len(rows)
    assert list(model.modules()) == modules
    assert list(model.state_dict()) == keys
    message = str(caught.value)
    for name, (_, reason) in UNCONVERTIBLE.items():
        assert reason in rows[name].reason, (name, rows[name])
        assert rows[name].kind == type(children[name]).__name__
        assert f"{name}: {rows[name].kind}: {rows[name].reason}" in message

    with caplog.at_level(logging.WARNING, logger="construct.network"):
        net = convert(model, strict=False)
    logged = [record.getMessage() for record in caplog.records if record.name == "construct.network"]
    assert len(logged) == len(rows)
    for row in rows.values():
        assert any(str(row) in line for line in logged), row
        assert type(net.get_submodule(row.path)) is type(model.get_submodule(row.path))
        assert net.get_submodule(row.path) is not model.get_submodule(row.path)
    assert isinstance(net.get_submodule("good"), MHSA)
    assert isinstance(net.get_submodule("deep.1"), MHSA)


INSPECTED = (
    *("in_channels", "out_channels", "kernel_size", "stride", "padding", "padding_mode", "dilation", "groups"),
    *("transposed", "output_padding"),
)


@pytest.mark.parametrize("conv", [
    nn.Conv1d(4, 6, 3, 2, 1, 2, groups=2, padding_mode="circular"),
    nn.Conv2d(3, 8, (3, 2), (2, 1), (1, 0), bias=False),
    nn.Conv3d(2, 2, 2, padding="same"),
    nn.ConvTranspose1d(4, 6, 4, 3, 1, 2, groups=2),
    nn.ConvTranspose2d(6, 4, (3, 2), 2, 1, output_padding=1, groups=2),
], ids=str)  # fmt: skip
def test_code_that_inspects_convolutions_can_read_the_layer(conv):
    layer = convert(conv)
    for name in INSPECTED:
        assert getattr(layer, name) == getattr(conv, name), name
    assert torch.equal(layer.weight, conv.weight)
    assert layer.weight.shape == conv.weight.shape
    assert layer.bias is None if conv.bias is None else torch.equal(layer.bias, conv.bias)
    assert layer.weight.device == conv.weight.device
    for name in ("weight", "bias", "kernel_size"):
        with pytest.raises(AttributeError):
            setattr(layer, name, None)


def test_autocast():
    model, x = small().eval(), image()
    net = convert(model)
    with torch.no_grad():
        full, first = model(x), net[0](x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected, output, alone = model(x), net(x), net[0](x)
    assert output.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(alone, first.bfloat16())  # computed in float32, rounded once
    # Around the layers everything runs in 8 bits.
    torch.testing.assert_close(output.float(), full, rtol=0, atol=0.05 * float(full.abs().max()))


def test_a_file_is_no_network():
    with pytest.raises(TypeError, match=r"not str \(construct.load reads a file\)"):
        construct.convert("model.pt")  # type: ignore[arg-type]
