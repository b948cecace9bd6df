"""Written files can be opened again: state dicts state their geometry, and load with their network or without one."""

import copy
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from safetensors.torch import save_file
from torch import Tensor, nn

import construct
import verify
from commands import Command
from construct import MHSA
from construct.modules.learning import learned_quadratic, with_covariance
from construct.weights.record import GEOMETRY
from readings import refusal, same, written
from verify.argument.documents import write_document
from verify.plots.stored_layer import layer_in
from verify.recheck.stored_layers import layers_in
from verify.strategies import Case, cases


class Net(nn.Module):
    """A network with strides, a transposed layer, groups, a layer under two names, and other layers between."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding="same", groups=2, padding_mode="reflect"), nn.ReLU())
        self.again = self.body
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.again(self.body(self.norm(self.stem(x)))))


PATHS = ["stem", "body.0", "again.0", "up"]


def built(seed: int = 0) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net().eval()


IMAGE = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("prefix", ["", "module", "_orig_mod", "net"])  # the first is of DataParallel itself
def test_names_of_wrappers_stand_before_the_paths_too(prefix: str, tmp_path: Path) -> None:
    net: Any = construct.convert(built())
    state: Any = (nn.ModuleDict({prefix: net}) if prefix else nn.DataParallel(net)).state_dict()
    assert sum("geometry" in entry for entry in state._metadata.values()) == len(PATHS)
    path = written(state, tmp_path / "s.pt")
    assert same(construct.load(path, model=built(1)), net)
    assert "stem: stride is (2, 2) in the file and (1, 1)" in refusal(path, model=Stride())
    assert {name.rpartition("stem")[0] + "stem" for name in construct.load(path, layers=True) if "stem" in name}
    alone = nn.ModuleDict({prefix: net.stem}) if prefix else nn.DataParallel(net.stem)
    assert "the layer: stride is" in refusal(written(alone.state_dict(), path), model=Stride().stem)


@pytest.mark.parametrize("strict", [True, False])
def test_a_state_dict_of_another_geometry_is_an_error(strict: bool) -> None:
    first, other = (construct.conv_to_mhsa(nn.Conv2d(2, 2, 3, padding=p)) for p in (1, 0))
    before = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    reason = r"the layer: it was saved from attention with padding \[0, 0\] and not \[1, 1\]"
    with pytest.raises(RuntimeError, match=reason):
        first.load_state_dict(other.state_dict(), strict=strict)
    assert all(torch.equal(tensor, before[name]) for name, tensor in first.state_dict().items())
    first.load_state_dict(dict(other.state_dict()))  # tensors alone state no geometry
    assert torch.equal(first.w_val, other.w_val)


@settings(max_examples=settings().max_examples // 2)
@given(cases())
def test_any_layer_comes_back(tmp_path_factory: pytest.TempPathFactory, case: Case) -> None:
    path = tmp_path_factory.mktemp("state") / "s.pt"
    net: Any = construct.convert(nn.ModuleDict({"a": case.conv}))
    torch.save(net.state_dict(), path)
    fresh = nn.ModuleDict({"a": copy.deepcopy(case.conv)})
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    alone, inside = construct.load(path, layers=True)["a"], construct.load(path, model=fresh).get_submodule("a")
    assert alone.geometry == net["a"].geometry
    expected = net["a"](case.x)
    assert torch.equal(alone(case.x), expected)
    assert torch.equal(inside(case.x), expected)
    assert not any(bool(parameter.any()) for parameter in fresh.parameters())  # it is not changed


@pytest.mark.parametrize("form", ["state dict", "checkpoint", "beside extra state", "safetensors"])
@pytest.mark.parametrize("convert", [lambda net: net, construct.convert], ids=["fresh", "converted"])
def test_the_network_of_a_state_dict(form: str, convert: Any, tmp_path: Path) -> None:
    net: Any = construct.convert(built())
    net.stem.w_key_pos.data *= 2.0
    path = tmp_path / ("s.safetensors" if form == "safetensors" else "s.pt")
    state = net.state_dict()
    if form == "safetensors":
        construct.save(net, path)
    else:
        more = {"counts": 3} if form == "beside extra state" else {}
        state.update(more)
        written({"epoch": 3, "model": state, "lr": [0.1]} if form == "checkpoint" else state, path)
    model = convert(built(1))
    model.stem.requires_grad_(False)
    if convert is construct.convert:
        model.body[0].execution = "dense"
    again: Any = construct.load(path, model=model)
    assert type(again) is Net
    assert same(again, net)
    layers = construct.load(path, layers=True)
    assert sorted(layers) == sorted(PATHS)
    for name, layer in layers.items():
        assert type(layer) is MHSA
        assert same(layer, net.get_submodule(name))
        assert layer.geometry == net.get_submodule(name).geometry
    executed_alike = convert is not construct.convert  # or nearly, by another execution
    assert torch.equal(again(IMAGE), net(IMAGE)) == executed_alike
    torch.testing.assert_close(again(IMAGE), net(IMAGE))
    assert again.body is again.again
    assert not again.training
    assert not any(parameter.requires_grad for parameter in again.stem.parameters())
    assert again.up.w_val.requires_grad


def test_other_encodings_widths_and_formats(tmp_path: Path) -> None:
    """The network's own conversion would use none of these."""
    conv = nn.Conv2d(4, 4, 3, padding=1)
    layers: dict[str, Any] = {
        "parabola": construct.conv_to_mhsa(conv, encoding="parabola"),
        "narrow": construct.conv_to_mhsa(conv, head_dim=1, heads_per_shift=4),
        "covariance": with_covariance(construct.conv_to_mhsa(conv)),
        "in bfloat16": construct.conv_to_mhsa(copy.deepcopy(conv).bfloat16()),
    }
    path = written(nn.ModuleDict(layers).state_dict(), tmp_path / "s.pt")
    again: Any = construct.load(path, model=nn.ModuleDict({name: copy.deepcopy(conv) for name in layers}))
    for name, layer in layers.items():
        x = torch.randn(1, 4, 5, 5).to(layer.w_val.dtype)
        assert torch.equal(again[name](x), layer(x)), name
        assert torch.equal(construct.load(path, layers=True)[name](x), layer(x)), name
        assert again[name].encoding.name == layer.encoding.name


def test_ties_stay_where_the_file_has_them_and_only_there(tmp_path: Path) -> None:
    def tied() -> Any:
        first, second = nn.Conv1d(2, 2, 3), nn.Conv1d(2, 2, 3, padding=1)
        second.weight = first.weight
        return nn.Sequential(first, second)

    net: Any = construct.convert(tied())
    again: Any = construct.load(written(net.state_dict(), tmp_path / "s.pt"), model=tied())
    assert again[0].w_out is again[1].w_out
    apart = copy.deepcopy(net.state_dict())
    apart["1.w_out"] = apart["1.w_out"] + 1
    again = construct.load(written(apart, tmp_path / "a.pt"), model=tied())
    assert torch.equal(again[0].w_out, apart["0.w_out"])
    assert torch.equal(again[1].w_out, apart["1.w_out"])


class Stride(Net):
    def __init__(self) -> None:
        super().__init__()
        self.stem.stride = (1, 1)


class Linear(Net):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(2, 2)  # type: ignore[assignment]


def test_what_does_not_fit_is_told_in_one_line(tmp_path: Path) -> None:
    net: Any = construct.convert(built())
    state = net.state_dict()
    path = written(state, tmp_path / "s.pt")
    assert refusal(path) == (
        f"{path}: a state dict without its network (give model=Net(), the network that it is of, or layers=True for its "
        "attention layers alone)"
    )
    line = refusal(path, model=Stride())
    assert "does not fit Stride: ValueError: stem: stride is (2, 2) in the file and (1, 1)" in line
    construct.save(net, tmp_path / "s.safetensors")
    for name in (path, tmp_path / "s.safetensors"):
        line = refusal(name, model=construct.convert(Stride()))
        assert "stem: it was saved from attention with stride [2, 2] and not [1, 1]" in line
    assert "up: Linear: not a convolution" in refusal(path, model=Linear())
    assert 'Unexpected key(s) in state_dict: "' in refusal(path, model=nn.Conv2d(2, 4, 3))
    assert "two ways to read it" in refusal(path, model=Net(), layers=True)
    whole = tmp_path / "whole.pt"
    construct.save(construct.convert(nn.Sequential(nn.Conv1d(1, 1, 1))), whole)
    assert "does not fit Net" in refusal(whole, model=Net())
    missing = OrderedDict(state)
    del missing["stem.v"]
    missing._metadata = state._metadata  # type: ignore[attr-defined]
    path = written(missing, tmp_path / "m.pt")
    for options in ({"model": built()}, {"layers": True}):
        assert "geometry and its tensors do not fit together: ValueError: no tensor 'stem.v'" in refusal(
            path, **options
        )
    partial = {key: value.clone() for key, value in state.items() if key != "stem.w_key_pos"}
    records = {"stem": state._metadata["stem"][GEOMETRY], "up": state._metadata["up"][GEOMETRY]}
    save_file(partial, tmp_path / "p.safetensors", {GEOMETRY: json.dumps(records)})
    assert "no tensor 'stem.w_key_pos'" in refusal(tmp_path / "p.safetensors")
    missing["stem.v"] = state["stem.v"].long()
    assert "a tensor is not of floating-point numbers" in refusal(written(missing, path), layers=True)
    assert "holds no attention layer" in refusal(written(built().state_dict(), tmp_path / "c.pt"), layers=True)
    assert "holds no attention layer" in refusal(written(nn.ReLU(), tmp_path / "r.pt"), layers=True)


class Built(nn.Module):
    """Pickled as a call with its layers, which only its class can arrange."""

    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1) if layer is None else layer

    def __reduce__(self) -> Any:
        return Built, (self.layer,)


class Kept(nn.Module):
    """Pickles its own kind of state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1)

    def __getstate__(self) -> Any:
        return [self.layer]

    def __setstate__(self, state: Any) -> None:
        Kept.__init__(self)
        self.layer = state[0]


def test_a_whole_module_is_opened_without_its_classes(tmp_path: Path) -> None:
    """Its attention layers are read, and with the network the whole module, like a state dict."""
    net: Any = construct.convert(built())
    path = written(net, tmp_path / "whole.pt")
    assert "holds classes that are not allowed" in refusal(path)
    layers = construct.load(path, layers=True)
    assert list(layers) == PATHS
    assert layers["body.0"] is layers["again.0"]
    assert all(same(layers[name], net.get_submodule(name)) for name in PATHS)
    opened = construct.load(path, model=built(seed=1))
    assert type(opened) is Net
    assert same(opened, net)
    assert torch.equal(opened(IMAGE), net(IMAGE))
    checkpoint = written({"epoch": 3, "model": net}, tmp_path / "checkpoint.pt")
    assert same(construct.load(checkpoint, model=Net()), net)


class Own(MHSA):
    """A subclass of the attention layer."""


def test_an_attention_layer_of_an_unknown_class_is_not_passed_over(tmp_path: Path) -> None:
    layer = construct.conv_to_mhsa(nn.Conv2d(1, 1, 3))
    layer.__class__ = Own
    path = written(layer, tmp_path / "own.pt")
    assert "Own is an attention layer of a class of its own" in refusal(path, layers=True)


@pytest.mark.parametrize("kind", [Built, Kept])
def test_no_layer_of_an_unknown_class_is_lost_in_silence(kind: Any, tmp_path: Path) -> None:
    path = written(construct.convert(nn.Sequential(nn.Conv2d(1, 1, 3), kind())), tmp_path / "odd.pt")
    for options in ({"layers": True}, {"model": nn.Sequential(nn.Conv2d(1, 1, 3), kind())}):
        assert f"{kind.__name__} is stored in a way of its own, and may hold modules" in refusal(path, **options)
    name = f"{kind.__module__}.{kind.__name__}"
    whole = construct.load(path, allow=[name])
    assert same(construct.load(path, model=whole, allow=[name]), whole)


def test_what_is_worked_out_needs_the_network_that_works_it_out(tmp_path: Path) -> None:
    def learning() -> Any:
        return nn.Sequential(learned_quadratic(construct.conv_to_mhsa(nn.Conv1d(1, 2, 3), alpha=1.0)))

    net = learning()
    path = written(net.state_dict(), tmp_path / "s.pt")
    assert same(construct.load(path, model=learning()), net)
    for options in ({"layers": True}, {"model": nn.Sequential(nn.Conv1d(1, 2, 3))}):
        assert "construct.modules.learning.settle makes plain tensors" in refusal(path, **options)


def lies(record: Any) -> list[Any]:
    """False records that a file may hold in place of a true one."""
    return [
        *(7, "MHSA", [], {}, None, [record], {**record, "kind": "Conv2d"}, {**record, "groups": 2}),
        *({**record, "stride": value} for value in ([2], [2, 0], "x", [2.0, 2], None, {"a": 1}, [True, 1])),
        {**record, "transposed": []},
        *({**record, "more": 1}, {**record, "radix": [1]}, {**record, "radix": "x"}, {**record, "encoding": 5}),
        *({**record, "encoding": "relative"}, {**record, "radix": [1, 9], "encoding": "covariance"}),
    ]


LIES = len(lies({"kind": "MHSA"}))


@pytest.mark.parametrize("number", range(LIES))
def test_records_that_lie_are_refused(number: int, tmp_path: Path) -> None:
    state: Any = construct.convert(nn.Sequential(nn.Conv2d(3, 3, 3, stride=2))).state_dict()
    state._metadata["0"]["geometry"] = lies(state._metadata["0"]["geometry"])[number]
    path = written(state, tmp_path / "s.pt")
    assert "do not fit together" in refusal(path, layers=True)
    assert "does not fit Sequential: " in refusal(path, model=nn.Sequential(nn.Conv2d(3, 3, 3, stride=2)))
    with pytest.raises(ValueError, match=r"s\.pt"):
        layer_in(path)
    save_file(state, tmp_path / "s.safetensors", {GEOMETRY: json.dumps({"0": state._metadata["0"]["geometry"]})})
    assert "do not fit together" in refusal(tmp_path / "s.safetensors")


DEEP = '{"": {"kind": "MHSA", "groups": ' + "[" * 50_000 + "]" * 50_000 + "}}"


@pytest.mark.parametrize(
    ("geometry", "reason"),
    [("[]", "a JSON object"), ("{", "must be JSON: "), ("[" * 100_000, "recursion"), (DEEP, "recursion")],
    ids=["a list", "torn", "deep and torn", "deep"],
)
def test_metadata_of_safetensors_that_hold_no_geometry(geometry: str, reason: str, tmp_path: Path) -> None:
    save_file(construct.conv_to_mhsa(nn.Conv1d(1, 2, 3)).state_dict(), tmp_path / "s.safetensors", {GEOMETRY: geometry})
    assert reason in refusal(tmp_path / "s.safetensors")


@pytest.mark.parametrize("name", ["forward", "training", "_modules"])
def test_layers_under_any_name_are_given_back(name: str, tmp_path: Path) -> None:
    network, layer = nn.Module(), construct.conv_to_mhsa(nn.Conv1d(1, 2, 3))
    network._modules[name] = layer
    construct.save(network, tmp_path / "s.safetensors")
    (again,) = (m for m in construct.load(tmp_path / "s.safetensors").modules() if isinstance(m, MHSA))
    x = torch.randn(1, 1, 4)
    assert torch.equal(again(x), layer(x))


@pytest.mark.parametrize("metadata", [5, "x", [], {}, {"0": 5}, {"0": {"version": "x"}}, {5: {"geometry": 5}}, None])
def test_metadata_that_are_none(metadata: Any, tmp_path: Path) -> None:
    state: Any = construct.convert(nn.Sequential(nn.Conv1d(1, 1, 1))).state_dict()
    state._metadata = metadata
    path = written(state, tmp_path / "s.pt")
    assert "nothing is said of the geometry" in refusal(path, layers=True)
    if not isinstance(metadata, dict):
        assert isinstance(construct.load(path, model=nn.Sequential(nn.Conv1d(1, 1, 1))).get_submodule("0"), MHSA)
    with pytest.raises(ValueError, match=r"s\.pt"):
        layer_in(path)


def test_the_checker_takes_the_geometry_of_attention_from_its_state_dict(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 2, stride=2)).eval()
    mhsa: Any = construct.convert(net)
    proofs = [(name, verify.certify(net[int(name)], mhsa[int(name)], grid=(6, 6), input_bound=1.0)) for name in "02"]
    conv, mine, proof = (tmp_path / name for name in ("conv.pt", "mhsa.pt", "proof.json"))
    torch.save(net, conv)
    state = mhsa.state_dict()
    torch.save(state, mine)
    geometries = [layer.geometry for layer in layers_in(mine).layers.values()]
    assert [geometry["stride"] for geometry in geometries if geometry] == [[1, 1], [2, 2]]
    write_document(proof, proofs, conv, mine)
    result = verify.check(proof, conv, mine)
    assert result.verdict.name == "PROVED"
    assert "geometry" not in str(result)  # nothing is assumed of it
    for name, value in (("stride", [1, 1]), ("padding", [1, 0]), ("padding_mode", "reflect"), ("more", 1)):
        other = copy.deepcopy(state)
        other._metadata["2"]["geometry"][name] = value
        torch.save(other, mine)
        write_document(proof, proofs, conv, mine)
        with pytest.raises(ValueError, match="the geometry of the MHSA is not the one that was certified"):
            verify.check(proof, conv, mine)
    del other["2.v"]  # records of incomplete layers are ignored
    torch.save(other, mine)
    write_document(proof, proofs, conv, mine)
    with pytest.raises(ValueError, match="only one of certificate and file has v of the"):
        verify.check(proof, conv, mine)
    for name in [name for name in state if name.startswith("2.")]:
        del state[name]
    torch.save(state, mine)
    assert list(layers_in(mine).layers) == ["0"]


@pytest.mark.parametrize("encoding", ["quadratic", "parabola"])
@pytest.mark.parametrize("form", ["pt", "safetensors"])
def test_what_the_command_writes_is_opened_by_everything_of_ours(
    encoding: str, form: str, from_conv: Command, verify_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    Path("net.py").write_text("from test_loading import *\n")
    torch.save(built().state_dict(), "state.pt")
    from_conv.prints("state.pt", "--model-file", "net.py:built", "--encoding", encoding, "--format", form)
    output = f"state.mhsa.{form}"
    net = construct.load(output, model=built(1))
    torch.testing.assert_close(net(IMAGE), built()(IMAGE))
    layers = construct.load(output, layers=True)
    assert sorted(layers) == sorted(PATHS)
    assert {layer.encoding.name for layer in layers.values()} == {encoding}
    assert torch.equal(layers["stem"](IMAGE), net.get_submodule("stem")(IMAGE))
    proof = "state.mhsa.json" if form == "pt" else f"{output}.json"
    out = verify_command.prints("check", proof, "--conv", "state.pt", "--mhsa", output)
    assert "the file of the MHSA" not in out
    assert "stride 2 × 2" in verify_command.prints("audit", output, "--layer", "stem", "--grid", 6, 6)
    verify_command.prints("plot", "centres", output, "--layer", "up", "-o", "up.svg")
    line = verify_command.refuses("audit", output, "--grid", 6, 6)
    assert "several layers; give --layer, one of " in line
    # And by the command itself.
    out = from_conv.prints(output, "--model-file", "net.py:built", "-o", "twice.pt")
    assert f"already converted: {len(set(PATHS)) - 1} attention layers" in out
