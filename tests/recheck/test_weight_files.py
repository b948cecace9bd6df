"""The checker's reader reads files of torch and safetensors exactly, executes nothing, and refuses anything unusual."""

import io
import json
import os
import pickle
import struct
import zipfile
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune

import construct
from archives import archive_of, records_in
from commands import python
from construct import conv_to_mhsa
from construct.attention import EXECUTIONS
from verify.layers.fields import stated_geometry
from verify.recheck import pickles, weight_files
from verify.recheck.checkpoints import TENSORS
from verify.recheck.pickles import Walk
from verify.recheck.weight_files import BYTES, GEOMETRY, Pickled, Rejected, layers_in, numbers, strict_json

CONVOLUTIONS = {
    "1-D": lambda: nn.Conv1d(2, 3, 4, stride=2, dilation=2, padding=3, padding_mode="reflect"),
    "2-D": lambda: nn.Conv2d(4, 6, (3, 2), padding=(1, 0), groups=2, bias=False),
    "same": lambda: nn.Conv2d(1, 2, 3, padding="same", padding_mode="circular"),
    "3-D": lambda: nn.Conv3d(1, 1, 2, padding=1, padding_mode="replicate"),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=(1, 0), groups=2),
}


class Net(nn.Module):
    """A container of its own class, with shared, nested, missing and cyclic modules."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 2, 3, padding=1)
        self.blocks = nn.ModuleList([nn.Sequential(self.first, nn.ReLU()), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)])
        self.rows = nn.ModuleDict({"a": nn.Conv1d(2, 2, 3)})
        self.absent = None
        self.register_module("nothing", None)
        self.table: Any = {("a", 1): [1, 2.5, b"bytes", {3}], "self": torch.arange(3)}
        self.back = self


class Evil:
    """Its pickle would make the reader run a command."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.system, (f"touch {self.place}",)


def written(path, content, **options):
    torch.save(content, path, **options)
    return path


def read(path):
    with Path(path).open("rb") as file:
        return {name: (layer, bits_of(layer)) for name, layer in layers_in(file, "f").items()}


def bits_of(layer):
    return {name: numbers(t.read(), t.dtype) for name, t in layer.tensors.items() if t.dtype in BYTES}


def refused(path, words):
    with Path(path).open("rb") as file, pytest.raises(Rejected, match=words) as caught:
        layers_in(file, "f")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_a_layer_is_read_as_torch_reads_it(make, dtype, tmp_path):
    torch.manual_seed(0)
    conv = make().to(dtype)
    for layer, names in ((conv, ("weight", "bias")), (construct.conv_to_mhsa(conv), TENSORS)):
        ((stored, values),) = read(written(tmp_path / "f.pt", layer)).values()
        assert (stored.kind, stored.geometry) == (type(layer).__name__, stated_geometry(layer))
        present = {name: getattr(layer, name) for name in names if getattr(layer, name) is not None}
        assert list(values) == list(present)
        for name, tensor in present.items():
            assert np.array_equal(values[name], tensor.detach().double().numpy()), name


def test_layers_are_found_under_the_names_that_torch_gives_them(tmp_path):
    torch.manual_seed(0)
    net = Net()
    layers = read(written(tmp_path / "f.pt", net))
    expected: dict[str, Any] = {name: m for name, m in net.named_modules() if isinstance(m, nn.Conv1d | nn.Conv2d)}
    assert list(layers) == ["first", "blocks.0.0", *list(expected)[1:]]
    assert layers["blocks.0.0"][0] is layers["first"][0]  # one module of two names; and a cycle of modules terminates
    for name, module in expected.items():
        assert np.array_equal(layers[name][1]["weight"], module.weight.detach().numpy())
    assert list(read(written(tmp_path / "m.pt", construct.convert(net)))) == list(layers)


def test_modules_that_share_themselves_endlessly_are_refused(tmp_path, monkeypatch):
    """Every module appears in two places, recursively: 2^40 paths in a small file."""
    module: Any = nn.Conv2d(1, 1, 1)
    for _ in range(40):
        module = nn.Sequential(module, module)
    refused(written(tmp_path / "f.pt", module), "has more than 100000 modules")


@pytest.mark.parametrize("layout", ["permuted", "sliced", "expanded", "shared"])
def test_strides_and_offsets_are_followed(layout, tmp_path):
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 4, 3)
    base = torch.randn(8, 4, 3, 3)
    views = {"permuted": base[:4].permute(1, 0, 3, 2), "sliced": base[2:6], "shared": base[4:]}
    weight = (views | {"expanded": base[:1].expand(4, 4, 3, 3)})[layout]
    conv.weight = nn.Parameter(weight)
    ((_, values),) = read(written(tmp_path / "f.pt", conv)).values()
    assert np.array_equal(values["weight"], weight.numpy())


def test_a_state_dict_has_tensors_and_no_geometry(tmp_path):
    net: Any = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 1))
    layers = read(written(tmp_path / "f.pt", net.state_dict()))
    assert list(layers) == ["0"]
    assert layers["0"][0].geometry is None
    assert np.array_equal(layers["0"][1]["weight"], net[0].weight.detach().numpy())
    layers = read(written(tmp_path / "m.pt", construct.convert(net).state_dict()))
    assert {name: layer.kind for name, (layer, _) in layers.items()} == {"0": "MHSA"}


def test_safetensors_with_and_without_geometry(tmp_path):
    net: Any = nn.Sequential(nn.Conv2d(2, 3, 3).half(), nn.BatchNorm2d(3))
    mhsa: Any = construct.convert(net)
    for name, model in (("c", net), ("m", mhsa)):
        geometry = {"0": {"kind": type(model[0]).__name__, **stated_geometry(model[0])}}
        path = tmp_path / f"{name}.safetensors"
        save_file(model.state_dict(), path, {"geometry": json.dumps(geometry)})
        ((stored, values),) = read(path).values()
        assert (stored.kind, stored.geometry) == (type(model[0]).__name__, stated_geometry(model[0]))
        tensors = dict(model[0].named_parameters())
        assert {*values} == {*tensors}
        assert all(np.array_equal(values[n], t.detach().double().numpy()) for n, t in tensors.items())
        save_file(model.state_dict(), path)
        ((stored, _),) = read(path).values()
        assert stored.geometry is None


def test_what_a_pickle_would_run_is_not_run(tmp_path):
    mark = tmp_path / "ran"
    net: Any = nn.Sequential(nn.Conv2d(1, 1, 1))
    net.evil = Evil(mark)
    path = written(tmp_path / "f.pt", net)
    assert list(read(path)) == ["0"]
    net[0].forward = Evil(mark)
    refused(written(path, net), "forward of its own")
    refused(written(path, Evil(mark)), "where a dict of names belongs")
    refused(written(path, {"a": Evil(mark)}), "where a plain tensor")
    assert not mark.exists()
    torch.load(written(path, {"a": Evil(mark)}), weights_only=False)
    assert mark.exists()  # a plain load runs it


def test_nothing_that_a_pickle_names_is_imported(tmp_path):
    path = written(tmp_path / "f.pt", construct.convert(Net()))
    code = (
        "import sys\nfrom verify.recheck.weight_files import layers_in\n"
        f"print(len(layers_in(open({str(path)!r}, 'rb'), 'f')))\n"
        "assert not {'torch', 'construct', 'safetensors', 'mpmath', 'sympy'} & set(sys.modules)"
    )
    done = python("-W", "ignore::ResourceWarning", "-c", code)
    assert (done.stdout, done.stderr) == ("4\n", "")


def edited(path, **members):
    """The same archive with changed members (None removes one), with correct checksums, sizes and offsets."""
    held = records_in(path.read_bytes())
    for name, content in members.items():
        held[name.replace("__", "/").replace("_pkl", ".pkl")] = content
    path.write_bytes(archive_of({name: content for name, content in held.items() if content is not None}))
    return path


def member(path, name):
    return records_in(path.read_bytes())[name]


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    return written(tmp_path / "f.pt", nn.Sequential(nn.Conv2d(2, 3, 3)))


def test_odd_archives_are_refused(saved):
    whole = saved.read_bytes()
    refused(edited(saved, data_pkl=None), "not what torch.save writes")
    for content in (whole + whole, whole[:99] + whole):
        saved.write_bytes(content)
        refused(saved, "behind the end of the zip|directory of the zip is not|zip64")
    with zipfile.ZipFile(saved, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("f/data.pkl", b"a" * 1000)
    refused(saved, "notes|compressed")


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
    with path.open("rb") as file:
        layers = layers_in(file, "f")
    assert layers.pop("0").kind == "Conv"
    assert layers
    assert {layer.kind for layer in layers.values()} == {"unknown"}


@pytest.mark.parametrize("text", [b"null", b"[]", b" {}", b'{"__metadata__": {"geometry": "null"}}'])
def test_what_is_no_json_object_is_said_so(text, tmp_path):
    (path := tmp_path / "f.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    refused(path, "is no JSON object|nor safetensors")


def test_a_file_without_a_model_is_refused(tmp_path):
    for content, words in ((b"", "the file is empty"), (b"not a model at all, but some text", "neither")):
        (path := tmp_path / "f.pt").write_bytes(content)
        refused(path, words)


def test_storage_that_does_not_fit_is_refused(saved):
    refused(edited(saved, data__0=b"\0" * 4), "does not fit")
    written(saved, nn.Sequential(nn.Conv2d(2, 3, 3)))
    pickled = member(saved, "data.pkl")
    longer = pickled.replace(b"K\x12K\x09K\x03K\x01t", b"K\x12K\x09K\x03K\x63t")  # the last stride
    assert longer != pickled
    refused(edited(saved, data_pkl=longer), "does not fit")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda conv: conv.register_forward_hook(print), "forward_hooks of its own"),
        (lambda conv: conv.register_forward_pre_hook(print), "forward_pre_hooks of its own"),
        (lambda conv: conv.add_module("inner", nn.ReLU()), "modules of its own"),
        (lambda conv: setattr(conv, "_conv_forward", print), "conv_forward of its own"),
        (lambda conv: setattr(conv.weight, "mine", 1), "_rebuild_parameter_with_state' in another way"),
        (lambda conv: vars(conv).update(bias=None), "one name to two things: 'bias'"),
        (lambda conv: vars(conv).update(weight=1.0), "one name to two things: 'weight'"),
        (lambda conv: vars(conv).update(forward=None), "forward of its own"),
        (lambda conv: vars(conv).update(mine=1), "mine of its own"),
        (lambda conv: vars(conv).update({"mi\0ne": 1}), r"mi\\x00ne of its own"),
        (lambda conv: conv._buffers.update(bias=torch.zeros(3)), "gives one name to two things"),
    ],
)
def test_layers_that_do_more_than_their_fields_say_are_refused(change, words, tmp_path):
    net = nn.Sequential(nn.Conv2d(2, 3, 3))
    change(net[0])
    refused(written(tmp_path / "f.pt", net), words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # An instance attribute precedes a method of the class.
        (lambda g: object.__setattr__(g, "output_size", itemgetter(2)), "more or fewer fields"),
        (lambda g: object.__setattr__(g, "note", "hello"), "more or fewer fields"),
        (lambda g: vars(g).pop("padding"), "more or fewer fields"),
        (lambda g: object.__setattr__(g, "stride", [1, 1]), "no tuples"),
    ],
)
def test_a_geometry_that_does_more_than_its_fields_say_is_refused(change, words, tmp_path):
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3))
    change(layer.geometry)
    refused(written(tmp_path / "f.pt", layer), words)


def test_an_execution_that_nobody_knows_is_refused(tmp_path):
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3))
    assert set(weight_files.EXECUTIONS) == set(EXECUTIONS)
    for name in EXECUTIONS:
        layer.execution = name
        assert read(written(tmp_path / "f.pt", layer))
    layer._execution = "of my own"
    refused(written(tmp_path / "f.pt", layer), "an execution of its own")


class Own(nn.Conv2d):
    """A class unknown to the reader."""


def test_convolutions_of_other_classes_are_shown_as_unknown(tmp_path):
    net: Any = nn.Sequential(Own(1, 1, 3), nn.MaxPool2d(2))
    net.hidden = [nn.Conv2d(1, 1, 3)]
    kinds = {name: layer.kind for name, (layer, _) in read(written(tmp_path / "f.pt", net)).items()}
    assert kinds == {"0": "unknown", "(not among the modules: torch.nn.modules.conv Conv2d)": "unknown"}


# ---- the walk --------------------------------------------------------------------------------------------------------


def test_the_walk_records_what_pickle_makes():
    value = {
        "a": [1, -2, 2**80, 1.5, True, None, "é", b"x", 300, 70000],
        "b": (1, (2,), ()),
        "c": {"d": {}},
        "e": list(range(2000)),
    }

    def plain(record):
        if isinstance(record, tuple):
            return tuple(map(plain, record))
        if isinstance(record, Pickled) and record.kind == "dict":
            return {key: plain(x) for key, x in record.pairs}
        if isinstance(record, Pickled) and record.kind == "_codecs encode":
            return record.args[0].encode(record.args[1])
        return [plain(x) for x, _ in record.pairs] if isinstance(record, Pickled) else record

    assert plain(Walk(pickle.dumps(value, 2)).root) == value
    for protocol in (0, 1, 3, 4, 5):
        with pytest.raises(Rejected, match="is not of protocol 2"):
            Walk(pickle.dumps(value, protocol))


def test_the_walk_refuses_what_torch_does_not_write():
    class Persistent(pickle.Pickler):
        def persistent_id(self, obj):
            return "text" if obj == "me" else None

    stream = io.BytesIO()
    Persistent(stream, 0).dump("me")
    odd_ones = [stream.getvalue(), b"(i__builtin__\ndict\n.", b"\x82\x01.", b"0.", b"K\x01K\x02.", b"(K\x01."]
    for odd in (*odd_ones, b"K\x01", b"K\x01.x", b"cos\nsystem"):
        with pytest.raises((Rejected, ValueError, IndexError)):
            Walk(odd)
        with pytest.raises((Rejected, ValueError, IndexError)):
            Walk(b"\x80\x02" + odd)
    with pytest.raises(Rejected, match="gives a module Class two states"):
        Walk(b"\x80\x02cmodule\nClass\n)\x81}b}b.")


def test_a_long_pickle_is_refused(monkeypatch):
    monkeypatch.setattr(pickles, "MOST_OPCODES", 100)
    with pytest.raises(Rejected, match="more than 100 opcodes"):
        Walk(pickle.dumps(list(range(200)), 2))


def test_shared_parts_cost_no_more_than_once():
    """Nested tuples, each holding the next twice: 2^60 parts from 60 levels of opcodes."""
    parts = b"\x80\x02)" + b"q\x00h\x00\x86" * 60
    assert len(Walk(parts + b".").root) == 2
    assert len(Walk(b"\x80\x02]q\x00h\x00a.").root.pairs) == 1  # a list that contains itself


# ---- JSON and safetensors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [b'{"a": 1, "a": 2}', b"[NaN]", b"[Infinity]", b"[-Infinity]", b"[1e999]", b"{", b"\xff", b"[" * 100000]
)
def test_strict_json_refuses(text):
    with pytest.raises(Rejected, match="no strict JSON"):
        strict_json(text, "it")


def safetensors_file(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_odd_safetensors_are_refused(tmp_path):
    path, four = tmp_path / "f.safetensors", {"dtype": "F32", "shape": [1, 1, 1], "data_offsets": [0, 4]}
    assert list(read(safetensors_file(path, {"a.weight": four}, b"\0" * 4))) == ["a"]
    for header, data, words in (
        ({"a.weight": four}, b"\0" * 5, "holes"),
        ({"a.weight": four}, b"\0" * 3, "truncated"),
        ({"a": four, "b": four}, b"\0" * 4, "overlap"),
        ({"a": four | {"data_offsets": [4, 8]}}, b"\0" * 8, "holes"),
        ({"a": four | {"data_offsets": [4, 0]}}, b"\0" * 4, "is not what"),
        ({"a": four | {"shape": [2]}}, b"\0" * 4, "is not what"),
        ({"a": four | {"shape": [-1, -1]}}, b"\0" * 4, "no counts"),
        ({"a": four | {"dtype": "F31"}}, b"\0" * 4, "F31"),
        ({"a": four | {"more": 1}}, b"\0" * 4, "no counts"),
        ({"a": four | {"data_offsets": [0, 4, 4]}}, b"\0" * 4, "no counts"),
        ({"a": four | {"shape": [0, 2**59, 2**59]}}, b"", "no counts, or too large"),
        ({"a": four | {"dtype": "C16"}}, b"\0" * 4, "C16"),
        ({"__metadata__": {"a": 1}}, b"", "no texts"),
        ({"__metadata__": [1]}, b"", "no texts"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}}', b"\0" * 4, "no whole number"),
        (b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"\0" * 4, "no strict JSON"),
        ({".weight": four}, b"\0" * 4, "could mean two things"),
        (b'{"a": {"dtype": "F32", "dtype": "F32"}}', b"", "stands twice"),
        (b"[" * 20, b"", "nor safetensors"),
        (b'{"a":' * 20, b"", "no strict JSON"),
        ({"__metadata__": {"geometry": "{"}}, b"", "no strict JSON"),
        ({"__metadata__": {"geometry": '{"a": {"kind": "Conv2d"}}'}}, b"", "said to be Conv2d"),
        ({"a.weight": four, "__metadata__": {"geometry": '{"a": {"kind": "MHSA"}}'}}, b"\0" * 4, "said to be MHSA"),
    ):
        refused(safetensors_file(path, header, data), words)
    path.write_bytes(struct.pack("<Q", 2**63) + b"{")
    refused(path, "neither")


def test_the_geometry_has_the_fields_that_are_hashed():
    assert {*GEOMETRY} == {*stated_geometry(nn.Conv1d(1, 1, 1))}
