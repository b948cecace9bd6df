"""What a network or a user edits or asks of a layer as of the convolution: its bias, its weight, an encoding of one's own."""

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import construct
import verify
from construct import MHSA, MHSAWeights, UnsupportedLayer, conv_to_mhsa, convert
from construct.encoding.encodings import Encoding, Parabola, Quadratic
from construct.errors import BadModelFile
from construct.modules.learning import with_covariance
from construct.weights.kernel import Kernel
from truths import exact, paper
from verify.strategies import Case, cases


def pickled(module):
    """The module as ``torch.save`` and ``torch.load`` give it back."""
    file = io.BytesIO()
    torch.save(module, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def through_file(name):
    def read(network, tmp_path):
        construct.save(network, tmp_path / name)
        return construct.load(tmp_path / name)

    return read


def through_state_dict(network, tmp_path):
    torch.save(network.state_dict(), tmp_path / "state.pt")
    return construct.load(tmp_path / "state.pt", layers=True)


SURVIVES = {
    "convert": lambda network, _: network,
    "convert again": lambda network, _: convert(network),
    "copy": lambda network, _: copy.copy(network),
    "deepcopy": lambda network, _: copy.deepcopy(network),
    "pickle": lambda network, _: pickled(network),
    "to": lambda network, _: copy.deepcopy(network).to(torch.float64),
    "half": lambda network, _: copy.deepcopy(network).half(),
    "requires_grad": lambda network, _: copy.deepcopy(network).requires_grad_(),
    "pt": through_file("net.pt"),
    "safetensors": through_file("net.safetensors"),
    "layers": through_state_dict,
    "covariance": lambda network, _: nn.Sequential(with_covariance(network[0])),
    "stock": lambda network, _: nn.Sequential(construct.from_torch_mha(construct.to_torch_mha(network[0], (5, 6)))),
    "stock, no biases": lambda network, _: nn.Sequential(
        construct.from_torch_mha(construct.to_torch_mha(network[0], (5, 6), bias=False))
    ),
}


@pytest.mark.parametrize("way", SURVIVES)
@pytest.mark.parametrize("bias", [False, True])
def test_a_missing_bias_stays_missing(way, bias, tmp_path):
    network = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, bias=bias))
    read = SURVIVES[way](convert(network), tmp_path)
    layer = read["0"] if isinstance(read, dict) else read.get_submodule("0")
    assert (layer.bias is None) is not bias
    assert layer.b_out.shape == (3,)
    assert "b_out" in layer.state_dict()
    assert "b_out" not in dict(layer.named_parameters()) or bias
    if not bias:
        assert not layer.b_out.any()
        assert not layer.b_out.requires_grad


def test_old_files_and_other_biases(tmp_path):
    """A record of earlier versions says nothing of a bias; a bias that is not zero is not loaded where there is none."""
    layer, biased = (conv_to_mhsa(nn.Conv2d(1, 2, 3, bias=bias)) for bias in (False, True))
    state: Any = layer.state_dict()
    old = state._metadata[""]["geometry"]
    del old["bias"]
    layer.load_state_dict(state)
    assert layer.bias is None
    biased.load_state_dict(layer.state_dict())
    assert biased.bias is biased.b_out
    nn.init.ones_(biased.b_out)
    with pytest.raises(RuntimeError, match="b_out is not zero"):
        layer.load_state_dict(biased.state_dict())
    torch.save(state, tmp_path / "old.pt")
    old_bias = construct.load(tmp_path / "old.pt", layers=True)[""].bias
    assert old_bias is not None
    assert torch.equal(old_bias, torch.zeros(2))
    assert construct.load(tmp_path / "old.pt", model=nn.Conv2d(1, 2, 3, bias=False)).bias is None
    torch.save(biased.state_dict(), tmp_path / "biased.pt")
    with pytest.raises(BadModelFile, match="b_out is not zero"):
        construct.load(tmp_path / "biased.pt", model=nn.Conv2d(1, 2, 3, bias=False))


CONVOLUTIONS = [
    nn.Conv1d(4, 6, 3, groups=2),
    nn.Conv2d(2, 3, (3, 2), padding=1, bias=False),
    nn.Conv2d(3, 3, 2),
    nn.Conv2d(4, 4, 3, groups=4, stride=2),
    nn.Conv3d(2, 2, 2),
    nn.ConvTranspose1d(3, 2, 4, stride=3),
    nn.ConvTranspose2d(4, 6, (3, 2), groups=2),
]


def init(name, *arguments):
    """An edit by a function of ``nn.init``."""
    return lambda module: getattr(nn.init, name)(module.weight, *arguments)


def of_data(edit):
    """An edit of ``weight.data``."""
    return lambda module: edit(module.weight.data)


@torch.no_grad()
def by_element(module):
    module.weight[0] = 2
    module.weight[:, -1, 0] += 1


@torch.no_grad()
def in_place(module):
    module.weight *= 2
    module.weight += torch.ones_like(module.weight)


@torch.no_grad()
def through_views(module):
    module.weight.view(len(module.weight), -1)[:, 0].zero_()
    first, *_, last = module.weight.unbind(0)
    first.copy_(last)
    for row in module.weight.detach():
        row.mul_(3)


def out_of(module):
    ones = torch.ones_like(module.weight)
    torch.add(ones, ones, out=module.weight.detach())


def in_inference_mode(module):
    with torch.inference_mode():
        module.weight.normal_()
        module.weight.data.view(-1)[0] = 7


def uninferred(module):
    weight = module.weight.data
    with torch.inference_mode():
        weight.clamp_(min=0)


def foreach(module):
    with torch.no_grad():
        torch._foreach_mul_([module.weight], 2.0)  # type: ignore[attr-defined]


def apart(module):
    with torch.no_grad():
        weight = module.weight
        weight.zero_()
        weight[0] = 1
        assert weight.sum() == weight[0].numel()


ACTS = {
    **{name: init(name) for name in ("uniform_", "normal_", "trunc_normal_", "ones_", "zeros_")},
    **{name: init(name) for name in ("kaiming_normal_", "kaiming_uniform_", "xavier_normal_", "xavier_uniform_")},
    "orthogonal_": init("orthogonal_"),
    "constant_": init("constant_", 0.5),
    "dirac_": init("dirac_"),
    "normal_(0.0, 0.02)": init("normal_", 0.0, 0.02),
    "data.zero_": of_data(torch.Tensor.zero_),
    "data.mul_": of_data(lambda data: data.mul_(0.5)),
    "data.normal_": of_data(torch.Tensor.normal_),
    "data[...]": of_data(lambda data: data.__setitem__(0, 1.0)),
    "data.copy_": of_data(lambda data: data.copy_(torch.arange(float(data.numel())).view_as(data))),
    "data.flatten": of_data(lambda data: data.flatten().fill_(1)),
    "detach": lambda module: module.weight.detach().clamp_(min=0),
    **{edit.__name__: edit for edit in (by_element, in_place, through_views, out_of)},
    "set_data": lambda module: setattr(
        module.weight, "data", torch.arange(float(module.weight.numel())).view(module.weight.shape)
    ),
    **{edit.__name__: edit for edit in (in_inference_mode, uninferred, foreach, apart)},
}


def same_after(edit, conv, layer):
    """Edit both modules alike, then compare what they hold, what they compute and what the state dict says."""
    for module in (conv, layer):
        torch.manual_seed(3)
        edit(module)
    assert torch.equal(layer.weight, conv.weight)
    size = (9, 8, 7)[: conv.weight.dim() - 2]
    x = torch.randint(-3, 4, (2, conv.in_channels, *size)).float()
    with torch.no_grad():
        for execution in ("auto", "dense"):
            layer.execution = execution
            torch.testing.assert_close(layer(x), conv(x), rtol=1e-5, atol=1e-5 * float(1 + conv(x).abs().max()))
    torch.testing.assert_close(convert(conv).state_dict()["w_val"].shape, layer.w_val.shape)


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("number", range(len(CONVOLUTIONS)))
def test_an_edited_weight_is_the_weight(name, number):
    if name == "dirac_" and isinstance(CONVOLUTIONS[number], nn.ConvTranspose2d):
        pytest.skip("torch's own fails")
    conv = copy.deepcopy(CONVOLUTIONS[number])
    layer = conv_to_mhsa(conv, order=torch.randperm(conv.weight[0, 0].numel()).tolist())
    with torch.no_grad():
        layer(torch.ones(1, conv.in_channels, *(9, 8, 7)[: conv.weight.dim() - 2]))  # prepares a call
    same_after(ACTS[name], conv, layer)


@given(cases(dtypes=[torch.float32, torch.float64]), st.data())
def test_any_kernel_that_is_written_is_computed(case: Case, data: st.DataObject):
    conv = copy.deepcopy(case.conv)
    order = data.draw(st.permutations(range(conv.weight[0, 0].numel())))
    layer = conv_to_mhsa(conv, order=order, head_dim=data.draw(st.sampled_from([None, min(conv.weight.shape[:2]) + 1])))
    kernel = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-3, 4, conv.weight.shape)
    for module in (conv, layer):
        module.weight.data.copy_(torch.from_numpy(kernel))
    assert torch.equal(layer.weight, conv.weight)
    if case.integers:
        with torch.no_grad():
            assert torch.equal(layer(case.x).double(), exact(conv, case.x))


ASSEMBLED, OF_BIAS = "weight.data.copy_", "layer.b_out = nn.Parameter"
RECORDED = "under torch.no_grad"
REFUSED = {
    "another parameter": (AttributeError, ASSEMBLED, lambda it: setattr(it, "weight", nn.Parameter(it.weight.clone()))),
    "another tensor": (AttributeError, ASSEMBLED, lambda it: setattr(it, "weight", torch.ones(3, 2, 2, 2))),
    "no weight": (AttributeError, ASSEMBLED, lambda it: setattr(it, "weight", None)),
    "the weight of another": (AttributeError, ASSEMBLED, lambda it: setattr(it, "weight", copy.deepcopy(it).weight)),
    "another bias": (AttributeError, OF_BIAS, lambda it: setattr(it, "bias", nn.Parameter(torch.ones(3)))),
    "no bias": (AttributeError, OF_BIAS, lambda it: setattr(it, "bias", None)),
    "parameter": (TypeError, "weight.clone", lambda it: nn.Parameter(it.weight.data)),
    "recorded": (RuntimeError, RECORDED, lambda it: it.weight.mul_(2)),
    "recorded element": (RuntimeError, RECORDED, lambda it: it.weight.__setitem__(0, 1.0)),
    "another shape": (ValueError, r"float32 \(3, 2, 2, 2\)", lambda it: setattr(it.weight, "data", torch.ones(3))),
    "another dtype": (
        ValueError,
        "weight stay torch.float32",
        lambda it: setattr(it.weight, "data", it.weight.double()),
    ),
    "numpy": (ValueError, "read-only", lambda it: it.weight.detach().numpy().fill(0)),
    "asarray": (ValueError, "read-only", lambda it: np.asarray(it.weight.data).fill(0)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_act_raises_one_line(name):
    error, words, edit = REFUSED[name]
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 2))
    before = copy.deepcopy(layer).state_dict()
    with pytest.raises(error, match=words) as caught:
        edit(layer)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(tensor, before[key]) for key, tensor in layer.state_dict().items())


@pytest.mark.parametrize("options", [{"head_dim": 1}, {"head_dim": 1, "heads_per_shift": None}], ids=str)
def test_heads_that_cannot_hold_any_kernel_are_not_edited(options):
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 2), **options)
    before = copy.deepcopy(layer).state_dict()
    with pytest.raises(ValueError, match="one head for each tap"):
        nn.init.zeros_(layer.weight)
    assert all(torch.equal(tensor, before[key]) for key, tensor in layer.state_dict().items())


def test_the_weight_is_frozen_and_learned_with_its_factors():
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 2))
    for frozen in (layer.weight, conv_to_mhsa(nn.Conv2d(2, 3, 2).requires_grad_(False)).weight):
        assert isinstance(frozen, Kernel)
        owner = frozen.layer
        frozen.requires_grad = False
        assert not owner.w_val.requires_grad
        assert not owner.w_out.requires_grad
        assert not owner.weight.requires_grad
        owner.weight.requires_grad_()
        assert owner.weight.requires_grad
        leaf = owner.weight.detach().requires_grad_()  # another leaf, as of any parameter
        (leaf**2).sum().backward()
        assert torch.equal(leaf.grad, 2 * leaf)
        assert owner.w_val.grad is None


def test_the_weight_has_gradients():
    """A penalty on the weight has the gradient that the convolution's has, through either factor."""
    for conv in (nn.Conv2d(2, 3, 2), nn.Conv2d(3, 2, 2), nn.ConvTranspose2d(4, 2, 3, groups=2)):
        layer = conv_to_mhsa(conv)
        for module in (layer, conv):
            (module.weight.norm() + (module.weight.flatten(1) @ module.weight.flatten(1).T).sum()).backward()
        torch.testing.assert_close(torch.autograd.grad(layer.weight.sum(), layer.w_val)[0].shape, layer.w_val.shape)
        with torch.no_grad():
            step = conv_to_mhsa(conv)
            for factor in ("w_val", "w_out"):
                whole = getattr(layer, factor)
                if not torch.equal(whole, torch.eye(*whole.shape[2:]).expand_as(whole)):
                    getattr(step, factor).copy_(whole.grad)
        torch.testing.assert_close(step.weight, conv.weight.grad)
        weight = layer.weight
        assert torch.autograd.grad(weight.square().sum(), weight)[0].equal(2 * conv.weight)


def test_a_weight_is_read_as_any_tensor():
    conv = nn.Conv2d(2, 3, 2)
    layer = conv_to_mhsa(conv)
    weight = layer.weight
    assert type(weight * 2) is type(weight.clone()) is type(weight.sum()) is torch.Tensor
    assert type(pickled(weight)) is type(copy.deepcopy(weight.detach())) is torch.Tensor
    assert torch.equal(pickled(weight), conv.weight)
    assert repr(weight.detach()) == repr(conv.weight.detach())
    assert weight.shape == conv.weight.shape
    assert weight.is_contiguous()
    assert np.array_equal(weight.detach().numpy(), conv.weight.detach().numpy())
    other = nn.Conv2d(2, 3, 2)
    other.weight.data = weight.data
    assert torch.equal(other.weight, weight)
    other.weight.data = layer.weight.double()
    assert other.weight.dtype == torch.float64
    other.weight.data = layer.weight
    assert other.weight.dtype == torch.float32
    x = torch.randn(4, 1, 2, 5, 5)
    torch.testing.assert_close(
        torch.func.vmap(lambda x: layer(x) * layer.weight.sum())(x),
        torch.stack([*map(lambda x: conv(x) * conv.weight.sum(), x)]),
        rtol=1e-4,
        atol=1e-4,
    )


class Distance(Encoding):
    """r_δ = (Σ|δ_i|, 1/(1 + ‖δ‖²)), which is no polynomial and has no centre."""

    def pos_dim(self, dims):
        return 2

    def r(self, grid):
        delta = torch.stack(grid.shifts())
        return torch.stack([delta.abs().sum(0), 1 / (1 + (delta**2).sum(0))])

    def centres(self, c):
        raise ValueError("no centres")


class Stretched(Quadratic):
    """Another r_δ under an inherited name: (‖δ‖², 3 δ)."""

    name = "quadratic"

    def r(self, grid):
        square, *linear = super().r(grid)
        return torch.stack([square, *(3 * axis for axis in linear)])


class Shifted(Parabola):
    """The parabola of 2n, with a radix that looks like that of ours."""

    def r(self, grid):
        return super().r(grid) * torch.tensor([[4.0], [2.0]], dtype=torch.float64)


class Learned(nn.Module, Encoding):
    """A module with a parameter: r_δ = (s·δ_1, s·δ_2)."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.75))

    def pos_dim(self, dims):
        return dims

    def r(self, grid):
        return torch.stack(grid.shifts()) * self.scale.double()

    def centres(self, c):
        raise ValueError("no centres")


OWN = {
    "distance": (Distance, 2, lambda d: (abs(d[0]) + abs(d[1]), 1 / (1 + d[0] ** 2 + d[1] ** 2))),
    "stretched": (Stretched, 3, lambda d: (d[0] ** 2 + d[1] ** 2, 3 * d[0], 3 * d[1])),
    "shifted": (lambda: Shifted((101, 1)), 2, lambda d: (4 * (101 * d[0] + d[1]) ** 2, 2 * (101 * d[0] + d[1]))),
    "learned": (Learned, 2, lambda d: (0.75 * d[0], 0.75 * d[1])),
}


def own_layer(name, content=False, scale=0.02):
    """A 3×3 layer of four heads with an encoding of one's own."""
    make, pos_dim, _ = OWN[name]
    shapes = {"w_qry": (4, 2, 3), "w_key": (4, 2, 3), "w_key_pos": (4, 3, pos_dim), "u": (4, 3), "v": (4, 3)}
    shapes |= {"w_val": (4, 1, 2, 2), "w_out": (4, 1, 2, 3), "b_out": (3,)}
    tensors = {key: scale * torch.randn(shape) for key, shape in shapes.items()}
    if not content:
        tensors |= {key: torch.zeros(shapes[key]) for key in ("w_qry", "w_key", "u")}
    geometry = conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1)).geometry
    return MHSA(geometry, MHSAWeights(**tensors), encoding=make()).requires_grad_(False)


@pytest.mark.nasty(72)
@pytest.mark.parametrize(("content", "scale"), [(False, 0.05), (False, 3.0), (True, 0.5)])
@pytest.mark.parametrize("name", OWN)
def test_an_encoding_of_ones_own_is_evaluated(name, content, scale):
    layer, x = own_layer(name, content, scale), torch.randn(2, 2, 5, 4)
    expected = torch.from_numpy(paper(layer, x, OWN[name][2]))
    assert isinstance(layer.encoding, Encoding)
    for execution in ("dense", "axial", "auto"):
        layer.execution = execution
        for _ in range(2):
            torch.testing.assert_close(layer(x).double(), expected, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.parametrize("name", OWN)
def test_an_encoding_of_ones_own_survives_or_is_refused(name, tmp_path):
    layer, x = own_layer(name), torch.randn(1, 2, 4, 4)
    for other in (copy.deepcopy(layer), pickled(layer), copy.deepcopy(layer).double().float(), convert(layer)):
        assert type(other.encoding) is type(layer.encoding)
        assert torch.equal(other(x), layer(x))
    fresh = own_layer(name)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh(x), layer(x))
    with pytest.raises(RuntimeError, match="it was saved from attention with encoding"):
        own_layer("stretched" if name != "stretched" else "distance").load_state_dict(layer.state_dict(), strict=False)
    for file in ("layer.pt", "layer.safetensors"):
        with pytest.raises(BadModelFile, match=r"Distance|Stretched|Shifted|Learned") as caught:
            construct.save(layer, tmp_path / file)
        assert "\n" not in str(caught.value)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", OWN)
def test_nothing_is_proved_of_an_encoding_of_ones_own(name):
    """Even where the scores are the convolution's: W_out = 0 and a bias."""
    layer, conv = own_layer(name), nn.Conv2d(2, 3, 3, padding=1)
    with torch.no_grad():
        layer.w_out.zero_()
        layer.b_out.fill_(1)
        conv.weight.zero_()
        assert conv.bias is not None
        conv.bias.fill_(1)
    with pytest.raises(ValueError, match=f"its encoding is .*{type(layer.encoding).__name__}, and only the quadratic"):
        verify.certify(conv, layer, grid=(5, 4))
    with pytest.raises(UnsupportedLayer, match=type(layer.encoding).__name__):
        construct.to_torch_mha(layer, (5, 4))


def test_a_layer_with_an_encoding_of_ones_own_learns():
    layer = own_layer("learned", scale=0.5).requires_grad_()
    assert "own_encoding.scale" in layer.state_dict()
    layer(torch.randn(1, 2, 4, 4)).square().sum().backward()
    assert layer.get_parameter("own_encoding.scale").grad != 0


def test_what_is_no_encoding_is_refused():
    class Lookalike:
        name = "quadratic"

        def pos_dim(self, dims):
            return dims + 1

    layer = conv_to_mhsa(nn.Conv1d(1, 1, 3))
    weights = MHSAWeights(**{name: getattr(layer, name).detach() for name in MHSAWeights.__dataclass_fields__})
    with pytest.raises(TypeError, match=r"must be a construct.*Encoding, not a Lookalike; subclass it"):
        MHSA(layer.geometry, weights, encoding=Lookalike())  # type: ignore[arg-type]


def test_an_encoding_of_ones_own_is_not_exported_and_no_way_out_is_promised():
    layer = own_layer(next(iter(OWN)))
    x = torch.randn(1, layer.in_channels, *(9,) * layer.geometry.dims)
    with pytest.raises(NotImplementedError, match=r"\AMHSA: the .* encoding cannot be exported, only run\Z"):
        torch.export.export(layer, (x,), strict=False)
