"""The checker's reader has what each format's own library returns: the same layers, geometry and bits."""

import json
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune

import construct
from construct import conv_to_mhsa
from construct.attention import EXECUTIONS
from verify.layers.fields import digests, stated_geometry
from verify.layers.reparametrized import CONVOLUTIONS as CLASSES
from verify.recheck.grids import GEOMETRY
from verify.recheck.stored_layers import BYTES, KINDS, TENSORS, layers_in
from verify.recheck.strict_input import Rejected

CONVOLUTIONS = {
    "1-D": lambda: nn.Conv1d(2, 3, 4, stride=2, dilation=2, padding=3, padding_mode="reflect"),
    "2-D": lambda: nn.Conv2d(4, 6, (3, 2), padding=(1, 0), groups=2, bias=False),
    "same": lambda: nn.Conv2d(1, 2, 3, padding="same", padding_mode="circular"),
    "3-D": lambda: nn.Conv3d(1, 1, 2, padding=1, padding_mode="replicate"),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=(1, 0), groups=2),
}


class Net(nn.Module):
    """A container of its own class, with shared, nested and missing modules."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 2, 3, padding=1)
        self.blocks = nn.ModuleList([nn.Sequential(self.first, nn.ReLU()), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)])
        self.rows = nn.ModuleDict({"a": nn.Conv1d(2, 2, 3)})
        self.absent = None
        self.register_module("nothing", None)
        self.table: Any = {("a", 1): [1, 2.5, b"bytes", {3}], "self": torch.arange(3)}


def written(path, content, **options):
    torch.save(content, path, **options)
    return path


def read(path):
    def bits_of(layer):
        return {name: t.numbers() for name, t in layer.tensors.items() if t.dtype in BYTES}

    return {name: (layer, bits_of(layer)) for name, layer in layers_in(path).layers.items()}


def refused(path, words):
    with pytest.raises(Rejected, match=words) as caught:
        layers_in(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(path.name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_a_layer_is_the_same_in_every_format(make, dtype, tmp_path):
    """Bit for bit, and so are the digests: safetensors and torch read it, and the certifier hashes the module."""
    conv = make().to(dtype)
    for layer, tensors in ((conv, ("weight", "bias")), (construct.conv_to_mhsa(conv), TENSORS)):
        ((stored, values),) = read(written(tmp_path / "f.pt", layer)).values()
        assert (stored.kind, stored.geometry) == (type(layer).__name__, stated_geometry(layer))
        present = {name: getattr(layer, name) for name in tensors if getattr(layer, name) is not None}
        assert {*values} == {*present}
        for name, tensor in present.items():
            assert np.array_equal(values[name], tensor.detach().double().numpy()), name
        assert stored.digests() == digests(layer, tensors)
        old = written(tmp_path / "old.pt", layer.state_dict(), _use_new_zipfile_serialization=False)
        save_file({name: tensor.detach() for name, tensor in present.items()}, safe := tmp_path / "f.safetensors")
        for path in (old, safe, written(tmp_path / "s.pt", {"state_dict": layer.state_dict(), "epoch": 3})):
            assert layers_in(path).layers[""].digests() == stored.digests()


def test_layers_are_found_under_the_names_that_torch_gives_them(tmp_path):
    net = Net()
    layers = read(written(tmp_path / "f.pt", net))
    expected: dict[str, Any] = {name: m for name, m in net.named_modules() if isinstance(m, nn.Conv1d | nn.Conv2d)}
    assert {*layers} == {"first", "blocks.0.0", *expected}  # one module has two names
    for name, module in expected.items():
        assert np.array_equal(layers[name][1]["weight"], module.weight.detach().numpy())
    assert {*read(written(tmp_path / "m.pt", construct.convert(net)))} == {*layers}


@pytest.mark.parametrize("how", ["weight_norm", "parametrized", "spectral_norm", "pruned", "attention"])
@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_a_layer_under_the_names_of_a_parametrization_is_seen_in_a_state_dict(how, form, tmp_path):
    inner = nn.Conv2d(3, 3, 3)
    if how == "weight_norm":
        with pytest.warns(FutureWarning):
            nn.utils.weight_norm(inner)
    elif how == "parametrized":
        nn.utils.parametrizations.weight_norm(inner)
    elif how == "spectral_norm":
        nn.utils.spectral_norm(inner)
    elif how == "pruned":
        prune.l1_unstructured(inner, "weight", 0.5)
    else:
        inner = construct.conv_to_mhsa(inner)
        nn.utils.parametrize.register_parametrization(inner, "w_val", nn.Identity())
    state = nn.Sequential(nn.Conv2d(2, 3, 3), inner).state_dict()
    if form == "torch":
        path = written(tmp_path / "f.pt", state)
    else:
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, path := tmp_path / "f.safetensors")
    layers = layers_in(path).layers
    assert layers.pop("0").kind == "Conv"
    assert layers
    assert {layer.kind for layer in layers.values()} == {"unknown"}


@pytest.mark.parametrize(
    "change",
    [
        lambda conv: conv.register_forward_hook(print),
        lambda conv: conv.register_forward_pre_hook(print),
        lambda conv: setattr(conv, "_conv_forward", print),
        lambda conv: conv._buffers.update(more=torch.zeros(3)),
        lambda conv: vars(conv).update(padding_mode="reflect", _reversed_padding_repeated_twice=[1] * 4),
        lambda conv: setattr(conv, "kernel_size", (2, 2)),
    ],
)
def test_layers_that_do_more_than_their_fields_say_are_unknown(change, tmp_path):
    net = nn.Sequential(nn.Conv2d(2, 3, 3))
    change(net[0])
    assert [layer.kind for layer, _ in read(written(tmp_path / "f.pt", net)).values()] == ["unknown"]


@pytest.mark.parametrize(
    "change",
    [
        lambda a: object.__setattr__(a.geometry, "output_size", (1, 1)),  # it precedes a method of the class
        lambda a: object.__setattr__(a.geometry, "note", "hello"),
        lambda a: vars(a.geometry).pop("padding"),
        lambda a: object.__setattr__(a.geometry, "stride", [1, 1]),
        lambda a: setattr(a, "_execution", "of my own"),
        lambda a: setattr(a, "heads", 8),
        lambda a: a.register_forward_hook(print),
    ],
)
def test_an_attention_layer_of_other_parts_is_refused_or_unknown(change, tmp_path):
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3))
    change(layer)
    with suppress(Rejected):
        kinds = [stored.kind for stored, _ in read(written(tmp_path / "f.pt", layer)).values()]
        assert kinds == ["unknown"]


def test_every_execution_is_read(tmp_path):
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3))
    for name in EXECUTIONS:
        layer.execution = name
        assert read(written(tmp_path / "f.pt", layer))[""][0].kind == "MHSA"


class Own(nn.Conv2d):
    """A class unknown to the reader."""


def test_convolutions_of_other_classes_are_shown_as_unknown(tmp_path):
    net: Any = nn.Sequential(Own(1, 1, 3), nn.MaxPool2d(2))
    net.hidden = [nn.Conv2d(1, 1, 3)]
    kinds = [layer.kind for layer, _ in read(written(tmp_path / "f.pt", net)).values()]
    assert sorted(kinds) == ["Conv2d", "unknown"]  # the one in the list is not passed over


REMEDY = "any .pt or .safetensors file with the same"


def test_what_is_no_model_is_refused(tmp_path):
    for content in (b"", b"not a model at all, but some text", b"PK\3\4" + b"\0" * 40, b"\x80\2]."):
        (path := tmp_path / "f.pt").write_bytes(content)
        refused(path, "f.pt")
    torch.export.save(torch.export.export(nn.ReLU(), (torch.ones(1),)), path := tmp_path / "f.pt2")
    refused(path, f"a program of torch.export.*{REMEDY}")
    (path := tmp_path / "f.onnx").write_bytes(b"\x08\x08\x12\x07pytorch")
    refused(path, f"ONNX.*{REMEDY}")


def safetensors_file(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_odd_safetensors_are_refused(tmp_path):
    path, four = tmp_path / "f.safetensors", {"dtype": "F32", "shape": [1, 1, 1], "data_offsets": [0, 4]}
    assert list(read(safetensors_file(path, {"a.weight": four}, b"\0" * 4))) == ["a"]
    twice = b'"a":' + json.dumps(four).encode()
    for header, data, words in (
        ({"a.weight": four}, b"\0" * 5, "deserializing"),
        ({"a.weight": four}, b"\0" * 3, "deserializing"),
        ({"a": four | {"data_offsets": [4, 8]}}, b"\0" * 8, "deserializing"),
        ({"a": four | {"shape": [2]}}, b"\0" * 4, "deserializing"),
        ({"a": four | {"dtype": "F31"}}, b"\0" * 4, "deserializing"),
        ({"__metadata__": {"a": 1}}, b"", "deserializing"),
        ({".weight": four}, b"\0" * 4, "which no path is"),
        (b"{%b,%b}" % (twice, twice), b"\0" * 4, "stands twice"),
        ({"__metadata__": {"geometry": "{"}}, b"", "must be strict JSON"),
        ({"__metadata__": {"geometry": "[]"}}, b"", "must be a JSON object"),
    ):
        refused(safetensors_file(path, header, data), words)
    for record in ({"kind": "MHSA"}, {"kind": "Conv9d"}, {"kind": 3}, {"stride": [1]}, [], None):
        geometry = json.dumps({"a": record})
        safetensors_file(path, {"a.weight": four, "__metadata__": {"geometry": geometry}}, b"\0" * 4)
        if isinstance(record, dict) and isinstance(record.get("kind"), str):
            assert read(path)["a"][0].kind == "unknown"
        else:
            refused(path, "must be the geometry of a layer")


def test_the_names_are_those_of_the_layers():
    assert GEOMETRY == {*stated_geometry(nn.Conv1d(1, 1, 1))}
    assert {kind for kind in KINDS if kind != "MHSA"} == {kind.__name__ for kind in CLASSES}
