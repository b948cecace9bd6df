"""What a network or a user edits or asks of a layer as of the convolution: its bias, its weight, an encoding of one's own."""

import copy
import io

import pytest
import torch
from torch import nn

import construct
import verify
from construct import conv_to_mhsa, convert
from construct.modules.learning import with_covariance


class AsksForBias(nn.Module):
    """A parent that computes another function with a bias."""

    def __init__(self, bias: bool):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1, bias=bias)

    def forward(self, x):
        y = self.conv(x)
        return y if self.conv.bias is None else torch.relu(y) + self.conv.bias.sum()


def pickled(module):
    """The module as ``torch.save`` and ``torch.load`` give it back."""
    file = io.BytesIO()
    torch.save(module, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


# ---- the bias ------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("bias", [False, True])
def test_a_parent_that_asks_for_the_bias_computes_the_same(bias):
    network, x = AsksForBias(bias), torch.randn(2, 2, 5, 6)
    torch.testing.assert_close(convert(network)(x), network(x), rtol=1e-5, atol=1e-5)


def test_a_missing_bias_is_not_trained():
    """The optimizers of both networks have the same numbers to train."""
    conv = nn.Conv2d(2, 3, 3, bias=False)
    layer = convert(conv).requires_grad_()
    sgd = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer(torch.randn(1, 2, 5, 5)).sum().backward()
    sgd.step()
    assert not layer.b_out.any()
    layer.b_out = nn.Parameter(torch.ones(3))  # gives it a bias, as assigning conv.bias does
    assert layer.bias is layer.b_out


def test_old_files_and_other_biases(tmp_path):
    """A record of earlier versions says nothing of a bias; a bias that is not zero is not loaded where there is none."""
    layer, biased = (conv_to_mhsa(nn.Conv2d(1, 2, 3, bias=bias)) for bias in (False, True))
    state = layer.state_dict()
    old = state._metadata[""]["geometry"]
    del old["bias"]
    layer.load_state_dict(state)
    assert layer.bias is None
    biased.load_state_dict(layer.state_dict())
    assert biased.bias is biased.b_out
    biased.b_out.data.fill_(1)
    with pytest.raises(RuntimeError, match="b_out is not zero"):
        layer.load_state_dict(biased.state_dict())
    torch.save(state, tmp_path / "old.pt")
    assert torch.equal(construct.load(tmp_path / "old.pt", layers=True)[""].bias, torch.zeros(2))
    assert construct.load(tmp_path / "old.pt", model=nn.Conv2d(1, 2, 3, bias=False)).bias is None
    torch.save(biased.state_dict(), tmp_path / "biased.pt")
    with pytest.raises(construct.files.reading.BadModelFile, match="b_out is not zero"):
        construct.load(tmp_path / "biased.pt", model=nn.Conv2d(1, 2, 3, bias=False))
