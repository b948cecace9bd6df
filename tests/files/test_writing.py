"""Model files are read without running them, and written entirely or not at all."""

import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import construct
from construct.errors import BadModelFile
from construct.files.allowed import allowed_classes
from construct.modules.learning import with_covariance


@pytest.fixture
def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 2, stride=2)).eval()


@pytest.fixture
def saved(small: nn.Module, tmp_path: Path) -> Path:
    torch.save(small, tmp_path / "small.pt")
    return tmp_path / "small.pt"


class Custom(nn.Module):
    """A class that files may not name."""


def test_the_list_of_classes_is_exact() -> None:
    kinds = allowed_classes()
    assert {nn.Conv2d, nn.Sequential, nn.MultiheadAttention, construct.MHSA, construct.ConvGeometry} <= set(kinds)
    assert all(issubclass(kind, nn.Module) or kind is construct.ConvGeometry for kind in kinds)
    assert {kind.__module__.rpartition(".")[0] for kind in kinds} == {"torch.nn.modules", "construct"}


def test_what_a_program_had_allowed_itself_stays_allowed(saved: Path) -> None:
    with torch.serialization.safe_globals([nn.Conv2d, Custom, (Custom, "test_writing.Custom")]):
        before = set(torch.serialization.get_safe_globals())
        construct.load(saved, allow=["test_writing.Custom"])
        assert set(torch.serialization.get_safe_globals()) == before
    assert nn.Sequential not in torch.serialization.get_safe_globals()


def with_radix_of_other_types(layer: Any) -> None:
    layer.w_key_pos = nn.Parameter(layer.w_key_pos[..., :2].clone(), requires_grad=False)
    layer.radix = ("a", 1.5)


SPOILT: dict[str, Callable[[Any], Any]] = {
    "heads": lambda layer: setattr(layer, "heads", 7),
    "execution": lambda layer: setattr(layer, "_execution", "nonsense"),
    "shape": lambda layer: setattr(layer, "w_val", nn.Parameter(torch.ones(2, 2))),
    "geometry": lambda layer: object.__setattr__(layer.geometry, "stride", (0, "x")),
    "fields": lambda layer: layer.geometry.__dict__.clear(),
    "radix": lambda layer: setattr(layer, "radix", (1, 2)),
    "types in a radix": with_radix_of_other_types,
    "a radix and a name": lambda layer: layer.__dict__.update(vars(with_covariance(layer)), radix=(1, 9)),
    "no geometry": lambda layer: setattr(layer, "geometry", 5),
    "a tensor missing": lambda layer: layer._parameters.pop("v"),
    "type of a tensor": lambda layer: setattr(layer, "v", nn.Parameter(layer.v.long(), requires_grad=False)),
    "children": lambda layer: layer._modules.update(child=5),
}


@pytest.mark.parametrize("name", SPOILT)
def test_an_attention_layer_that_contradicts_itself(name: str, small: nn.Module, tmp_path: Path) -> None:
    converted = construct.convert(small)
    SPOILT[name](converted[0])  # type: ignore[index]
    torch.save(converted, tmp_path / "a.pt")
    with pytest.raises(BadModelFile, match=r"its layers contradict themselves|do not fit together"):
        construct.load(tmp_path / "a.pt")


def test_saving_what_could_not_be_read_back(small: nn.Module, tmp_path: Path) -> None:
    construct.save(small, tmp_path / "a.pt")
    before = (tmp_path / "a.pt").read_bytes()
    with pytest.raises(
        BadModelFile, match=r"Custom \(give allow=\[\'test_writing\'\], or save its state dict with torch.save\)"
    ):
        construct.save(nn.Sequential(Custom()), tmp_path / "a.pt")
    local = nn.Sequential()
    local.function = lambda: None  # type: ignore[assignment]
    with pytest.raises(BadModelFile, match="cannot be saved"):
        construct.save(local, tmp_path / "a.pt")
    with pytest.raises(TypeError, match=r"takes an nn\.Module"):
        construct.save(small.state_dict(), tmp_path / "a.pt")  # type: ignore[arg-type]
    assert (tmp_path / "a.pt").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


def test_a_link_stays_a_link_and_rights_stay(small: nn.Module, tmp_path: Path) -> None:
    construct.save(small, tmp_path / "real.pt")
    (tmp_path / "real.pt").chmod(0o600)
    (tmp_path / "link.pt").symlink_to("real.pt")
    construct.save(construct.convert(small), tmp_path / "link.pt")
    assert (tmp_path / "link.pt").is_symlink()
    assert isinstance(construct.load(tmp_path / "real.pt")[0], construct.MHSA)  # type: ignore[index]
    assert stat.S_IMODE((tmp_path / "real.pt").stat().st_mode) == 0o600


def test_two_at_once_leave_one_whole_file(small: nn.Module, tmp_path: Path) -> None:
    writers = [threading.Thread(target=construct.save, args=(small, str(tmp_path / "out.pt"))) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    x = torch.ones(1, 2, 4, 4)
    assert torch.equal(construct.load(tmp_path / "out.pt")(x), small(x))
    assert [p.name for p in tmp_path.iterdir()] == ["out.pt"]


def test_a_network_that_is_too_large_to_be_read_back_is_not_saved(small: nn.Module, tmp_path: Path) -> None:
    small.history = "x" * 2**24  # type: ignore[assignment]
    with pytest.raises(BadModelFile, match="at most 16777216 are read"):
        construct.save(small, tmp_path / "a.pt")
    assert not [*tmp_path.iterdir()]


def test_several_threads_read_at_once(small: nn.Module, saved: Path) -> None:
    """torch's list of safe globals is one for all of them."""
    readings: list[nn.Module] = []
    readers = [threading.Thread(target=lambda: readings.append(construct.load(saved))) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    kinds = [type(module) for module in small.modules()]
    assert [[type(module) for module in net.modules()] for net in readings] == [kinds] * 8
