"""From every file that the command certifies, the checker reads the same kernels, or says in one line why not."""

import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

import construct
import verify
from commands import Command
from construct.files import reading as construct_reading
from construct.from_conv import main
from rechecked import Files
from verify.recheck.stored_layers import layers_in
from verify.recheck.strict_input import Rejected

NETWORKS = """
import warnings
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

def net():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 1))

class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(1, 1, 3)
        self.b = nn.ModuleList([self.a])

    def forward(self, x):
        return self.b[0](self.a(x))

def bare():
    return nn.Conv2d(1, 2, 3)

def normed():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 2, 3)))

def once_normed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Conv2d(1, 2, 3)))

def pruned():
    model = net()
    nn.utils.prune.l1_unstructured(model[0], "weight", 0.4)
    return model

def wrapped_inside():
    return nn.Sequential(nn.DataParallel(nn.Conv2d(1, 2, 3)), nn.ReLU())

def named_module():
    model = nn.Module()
    model.module = nn.Conv2d(1, 2, 3)
    model.forward = model.module.forward
    return model
"""


def under(prefix: str, state: dict[str, Any]) -> dict[str, Any]:
    return {prefix + name: value for name, value in state.items()}


def trained(model: nn.Module) -> dict[str, Any]:
    """The state of an optimizer after a step."""
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 1, 8, 8)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


FORMS: dict[str, Callable[[nn.Module], Any]] = {
    "state dict": lambda m: m.state_dict(),
    "state_dict": lambda m: {"state_dict": m.state_dict(), "epoch": 3},
    "model and optimizer": lambda m: {"optimizer": trained(m), "model": m.state_dict(), "rng": torch.get_rng_state()},
    "nested": lambda m: {"epoch": 3, "checkpoint": {"lr": [0.1], "model_state_dict": m.state_dict()}},
    "beside an epoch": lambda m: {**m.state_dict(), "epoch": 3, "history": [0.1], "args": {"lr": 0.1}},
    "module.": lambda m: under("module.", m.state_dict()),
    "_orig_mod.": lambda m: under("_orig_mod.", m.state_dict()),
    "both, wrapped": lambda m: {"model": under("module._orig_mod.", m.state_dict()), "ema_decay": 0.9},
    "averaged": lambda m: AveragedModel(m).state_dict(),
    "a part compiled": lambda m: {name.replace(".", "._orig_mod.", 1): t for name, t in m.state_dict().items()},
    "lightning": lambda m: {"state_dict": under("model.", m.state_dict()), "callbacks": {"Best": {"score": torch.ones(())}}},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _networks(from_conv: Command) -> None:
    """Write the file above to the current folder."""
    Path("nets.py").write_text(NETWORKS)


@pytest.fixture
def files() -> Files:
    """``m.pt`` and ``o.pt`` in the current folder, and their certificate."""
    files = Files(Path())
    files.certificate, files.conv, files.mhsa = map(Path, ("o.json", "m.pt", "o.pt"))
    return files


def proofs_of(net: Any, mhsa: Any, size: int, names: str) -> list[tuple[str, Any]]:
    """Certificates of the layers with these names."""
    return [(name, verify.certify(net[int(name)], mhsa[int(name)], grid=(size, size))) for name in names]


def built(name: str) -> nn.Module:
    """A network from the file above."""
    scope: dict[str, Any] = {}
    exec(NETWORKS, scope)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return scope[name]()


def converted(content: Any, *options: str, file: str = "m.pt") -> verify.Verdict:
    """The result of rechecking the command's certificate of a file with this content, from that same file."""
    (save_file if file.endswith(".safetensors") else torch.save)(content, file)
    assert main([file, "-o", "o.pt", *options]) == 0
    return verify.check("o.json", file, "o.pt").verdict


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["net", "bare"])
def test_checkpoints_are_rechecked(name: str, form: str) -> None:
    content = FORMS[form](built(name))
    assert converted(content, "--model-file", f"nets.py:{name}").name == "PROVED"
    assert converted(content, "--stride", "1").name == "PROVED"  # and the kernels alone


def test_other_forms_are_rechecked() -> None:
    assert converted({"model": built("net"), "epoch": 3}).name == "PROVED"
    for name in ("wrapped_inside", "named_module"):
        assert converted(built(name).state_dict(), "--model-file", f"nets.py:{name}").name == "PROVED"
    state = under("module.", built("net").state_dict())
    assert converted(state, "--model-file", "nets.py:net", file="m.safetensors").name == "PROVED"


def test_a_module_of_two_names_is_rechecked_under_both() -> None:
    assert converted(built("Shared").state_dict(), "--model-file", "nets.py:Shared").name == "PROVED"
    assert [layer["name"] for layer in json.loads(Path("o.json").read_bytes())["layers"]] == ["a", "b.0"]
    assert main(["m.pt", "-o", "o.safetensors", "--model-file", "nets.py:Shared"]) == 0
    assert verify.check("o.safetensors.json", "m.pt", "o.safetensors").verdict.name == "PROVED"
    a: Any = nn.Conv2d(1, 1, 3)
    assert converted(nn.ModuleDict({"a": a, "b": nn.ModuleList([a])})).name == "PROVED"


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_what_cannot_be_rechecked_is_told_in_one_line() -> None:
    for name in ("normed", "once_normed", "pruned"):
        torch.save(built(name).state_dict(), "m.pt")
        assert main(["m.pt", "-o", "o.pt", "--model-file", f"nets.py:{name}"]) == 0
        with pytest.raises(Rejected) as caught:
            verify.check("o.json", "m.pt", "o.pt")
        assert str(caught.value).startswith("layer '0'")
        assert "folded" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_same_tensors_are_rechecked_in_any_file_and_format() -> None:
    """A certificate of one file holds for every other one with its tensors, whatever their names, and for no other tensors."""
    state = built("net").state_dict()
    torch.save(state, "m.pt")
    assert main(["m.pt", "-o", "o.pt", "--model-file", "nets.py:net"]) == 0
    assert main(["m.pt", "-o", "o.safetensors", "--model-file", "nets.py:net"]) == 0
    torch.save(state, "old.pt", _use_new_zipfile_serialization=False)
    save_file(state, "m.safetensors")
    save_file(under("encoder.", state), "inside.safetensors")
    torch.save({"model": state, "model_ema": {name: 2 * value for name, value in state.items()}}, "both.pt")
    torch.save(built("net"), "whole.pt")
    for file in ("old.pt", "m.safetensors", "inside.safetensors", "both.pt", "whole.pt"):
        for mhsa in ("o.pt", "o.safetensors"):
            result = verify.check("o.json", file, mhsa)
            assert result.verdict.name == "PROVED", str(result)
            assert f"{file}: not the very file that was certified, but it has the tensors" in str(result)
    assert "'0' is there as 'encoder.0', and so on" in str(verify.check("o.json", "inside.safetensors", "o.pt"))
    assert "'model_ema'" in str(verify.check("o.json", "both.pt", "o.pt"))
    assert "very file" not in str(verify.check("o.json", "m.pt", "o.pt"))
    with pytest.raises(Rejected, match="weight of the Conv is not the tensor that was certified"):
        verify.check("o.json", "both.pt", "o.pt", key="model_ema")
    torch.save({**under("module.", state), "conv.weight": torch.ones(1, 1, 3, 3)}, "m.pt")
    result = verify.check("o.json", "m.pt", "o.pt")
    assert (result.verdict.name, result.uncovered) == ("UNDECIDED", ("conv",))
    state["0.weight"][0, 0, 0, 0] += 1
    torch.save(under("other.", state), "m.pt")
    with pytest.raises(Rejected, match=r"layer '0' is missing in .*, and no other names there fit its tensors"):
        verify.check("o.json", "m.pt", "o.pt")


def test_names_are_not_exchanged(files: Files) -> None:
    """Below another path, too, each layer is looked for under its own name, even where a layer has the same tensors."""
    a, b = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3, stride=2)
    net: Any = nn.Sequential(a, b).eval()
    mhsa: Any = construct.convert(net)
    files.write(proofs_of(net, mhsa, 9, "01"), net, mhsa)
    state = under("p.", mhsa.state_dict())
    files.save(net, state)
    assert files.check().verdict.name == "PROVED"
    files.save(net, {f"p.{1 - int(name[2])}{name[3:]}": value for name, value in state.items()})
    with pytest.raises(Rejected, match="no other names there fit"):
        files.check()
    twins: Any = nn.Sequential(a, copy.deepcopy(a))
    mhsa = construct.convert(twins)
    files.write(proofs_of(twins, mhsa, 9, "01"), under("enc.", twins.state_dict()), mhsa)
    assert files.check().verdict.name == "PROVED"


def test_a_file_that_two_libraries_could_read_is_read_by_one() -> None:
    """Whatever the name says, the command and the checker choose the library by the same bytes."""
    tensors = {"weight": torch.ones(1, 1, 3), "bias": torch.zeros(1)}
    data = save(tensors)
    for start in (b"PK\3\4\0\0\0\0", b"\x80\2U\5\0\0\0\0"):
        length = int.from_bytes(start, "little")
        if length < 10**8:
            header = data[8 : 8 + int.from_bytes(data[:8], "little")]
            Path("m.bin").write_bytes(start + header.ljust(length) + data[-16:])
        else:
            Path("m.bin").write_bytes(start + data[8:])
        readings = []
        for read in (lambda: construct_reading.read("m.bin").kind, lambda: layers_in("m.bin").notes):
            try:
                readings.append(read())
            except ValueError:
                readings.append(None)
        assert (readings[0] == "safetensors") == (readings[1] == ())


class Box:
    """Not a module: torch reaches what it holds by no path."""

    def __init__(self, conv: nn.Conv2d):
        self.conv = conv


def test_every_layer_of_a_file_is_covered_or_named(files: Files) -> None:
    net: Any = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LayerNorm([2, 4, 4]), nn.Flatten(), nn.Linear(32, 1))
    mhsa: Any = construct.convert(net)
    files.write(proofs_of(net, mhsa, 6, "0"), net, mhsa)
    assert files.check().verdict.name == "PROVED"  # torch's LayerNorm is no convolution
    files.save(net.state_dict(), mhsa.state_dict())
    assert files.check().verdict.name == "PROVED"
    for box in (Box(nn.Conv2d(1, 1, 3)), [nn.Conv2d(1, 1, 3)]):
        net.box = box
        torch.save(net, "m.pt")
        with contextlib.suppress(Rejected):
            result = files.check()
            assert (result.verdict.name, len(result.uncovered)) == ("UNDECIDED", 1)
    net._modules["box[0]"] = nn.Conv2d(1, 2, 3)  # the path of another one
    torch.save(net, "m.pt")
    with pytest.raises(Rejected, match="two modules have the path"):
        files.check()


def test_below_another_path_the_geometry_decides_too(files: Files) -> None:
    """A twin with the same tensors, another padding and a shorter path is not taken for the layer."""
    conv, twin = nn.Conv2d(1, 2, 3), nn.Conv2d(1, 2, 3, padding=1)
    twin.load_state_dict(conv.state_dict())
    net = nn.Sequential(conv)
    mhsa: Any = construct.convert(net)
    both = nn.ModuleDict({"a": nn.Sequential(twin), "bb": net})
    result = files.write(proofs_of(net, mhsa, 6, "0"), both, mhsa).check()
    assert (result.layers["0"].name, result.uncovered) == ("PROVED", ("a.0",))


def test_no_word_of_a_file_hides_a_layer(files: Files) -> None:
    """Neither a kind that it states, nor a class that is called as one of torch's, nor a shape that a norm has."""
    net: Any = nn.Sequential(nn.Conv2d(1, 2, 3))
    mhsa: Any = construct.convert(net)
    files.write(proofs_of(net, mhsa, 6, "0"), net, mhsa)
    for kind in (None, "other", "unknown", "Linear"):
        geometry = {"geometry": json.dumps({"2": {"kind": kind}})} if kind else None
        save_file({**net.state_dict(), "2.weight": torch.ones(2, 2, 3, 3)}, "m.safetensors", geometry)
        assert verify.check("o.json", "m.safetensors", "o.pt").uncovered == ("2",)
    named = type("Conv2dNew", (nn.Module,), {"__module__": "torch.nn.modules.conv"})
    module = named()
    module.weight = nn.Parameter(torch.ones(2, 2, 3, 3))
    odd = nn.Conv2d(2, 2, 3)
    odd.bias = nn.Parameter(torch.ones(2, 2, 3, 3))
    setattr(nn.modules.conv, "Conv2dNew", named)  # noqa: B010
    try:
        for hidden in (module, odd):
            net.hidden = hidden
            torch.save(net, "m.pt")
            with contextlib.suppress(Rejected):
                assert files.check().uncovered == ("hidden",)
    finally:
        delattr(nn.modules.conv, "Conv2dNew")


def test_other_networks_in_a_checkpoint_do_not_matter() -> None:
    net, other = built("net"), built("net")
    torch.save(
        {"model": net, "ema": other, "epoch": 3, "parts": {"criterion": nn.Sequential(nn.Conv2d(1, 1, 3))}}, "m.pt"
    )
    assert main(["m.pt", "-o", "o.pt"]) == 0
    for key in (None, "model"):
        assert verify.check("o.json", "m.pt", "o.pt", key=key).verdict.name == "PROVED"
