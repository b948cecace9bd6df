"""The benchmarks' tables and docs/speed.md, without a word about how long anything takes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import benchmarks.__main__ as command
from benchmarks import compare, export, layers, page, timing
from benchmarks.results import Row
from benchmarks.shapes import NETWORKS, square
from commands import ROOT

README = ROOT / "README.md"
EPYC = "AMD EPYC (family 25, model 17), AVX512"


def tiny() -> Iterator[tuple[nn.Module, tuple[int, ...]]]:
    """Two equal layers and one of another kind."""
    for _ in range(2):
        yield square(nn.Conv2d(2, 3, 3, padding=1), 8)
    yield nn.ConvTranspose3d(2, 2, 2, stride=2), (1, 2, 3, 3, 3)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every network is tiny, and a call is measured once."""
    monkeypatch.setattr(timing, "AT_LEAST", 0.0)
    for name in NETWORKS:
        monkeypatch.setitem(NETWORKS, name, tiny)


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """The settings of torch that a command changes are as before."""
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    before = torch.get_num_threads(), matmul.allow_tf32, cudnn.allow_tf32
    yield
    torch.set_num_threads(before[0])
    matmul.allow_tf32, cudnn.allow_tf32 = before[1:]


def test_the_page_is_what_the_committed_results_say():
    assert page.PAGE.read_text(encoding="utf-8") == page.page()


def test_the_readme_cites_the_committed_results():
    newer = {what: row.cells[1] for what, row in page.rows_on("AMD EPYC (family 26").items()}
    networks = "ResNet-50", "MobileNetV2", "ConvNeXt-T"
    pairs = [f"{newer[f'{name}, forward']} ({newer[f'{name}, forward and backward']})" for name in networks]
    figures = {what: row.cells[1] for what, row in page.rows_on(EPYC).items()}
    forward = {name: figures[f"{name}, forward"] for name in layers.GOALS}
    both = {name: figures[f"{name}, forward and backward"] for name in layers.GOALS}
    dense = figures["64→64, 3×3, at 32, evaluated densely, as in Eq. 3"]
    sentences = (
        f"on a Zen 5, some changes later, {pairs[0]}, {pairs[1]} and {pairs[2]}",
        f"{forward['ResNet-50']} times as long as the convolutions of ResNet-50 ({both['ResNet-50']} with gradients)",
        f"{forward['MobileNetV2']} ({both['MobileNetV2']}) times as long as MobileNetV2's",
        f"{forward['ConvNeXt-T']} ({both['ConvNeXt-T']}) times as long as ConvNeXt-T's",
        f"a 64→64 layer at 32 × 32 takes {dense} times as long",
        f"takes {figures['certify them']} of processor time there, rechecking them {figures['recheck them']}",
    )
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert not [sentence for sentence in sentences if sentence not in text]


def test_every_goal_is_a_row_of_the_committed_tables():
    goals = {what: row.goal for what, row in page.rows_on(EPYC).items()}
    for name, of_kind in (layers.GOALS | {"ResNet-50": layers.RESNET_50_ON_EPYC}).items():
        for kind, goal in of_kind.items():
            assert goals[f"{name}, {compare.KINDS[kind]}"] == goal
    for threads, goal in layers.SINGLE_GOALS.items():
        assert goals[f"{layers.single_at(layers.SIDES)}, threads: {threads}, forward"] == goal
    for beginning, count in (("MiB beyond", 2), ("first call", 1), ("torch.compile", 1), ("ResNet-50 to", 2)):
        assert sum(what.startswith(beginning) and goal is not None for what, goal in goals.items()) == count


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        (Row("a", (0.9512,), 0.95), ("a", "0.951", "≤ 0.95", "MISSED")),
        (Row("a", (0.5, 1.0), 1, "s"), ("a", "0.5, 1 s", "≤ 1 s", "met")),
        (Row("a", (0.5, 1.25), 1), ("a", "0.5, 1.25", "≤ 1", "MISSED")),
        (Row("a", (1234.6,)), ("a", "1235", "", "")),
        (Row("a", (float("nan"),), 1), ("a", "nan", "≤ 1", "MISSED")),
    ],
)
def test_a_row_is_met_if_each_of_its_values_is(row: Row, cells: tuple[str, ...]):
    assert row.cells == cells


@pytest.mark.usefixtures("small")
def test_every_part_of_the_command_prints_its_table_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "a.json"
    command.main(["networks", "single", "two-threads", "memory", "first", "--rounds", "1", "--json", str(path)])
    lines = capsys.readouterr().out.splitlines()
    result = json.loads(path.read_text(encoding="utf-8"))
    assert [line.split("  ")[0] for line in lines] == [row["what"] for row in result["rows"]]
    assert len(lines) == 2 * len(layers.GOALS) + 2 * len(layers.SINGLE_GOALS) + 2 + 4
    assert result["torch"] == torch.__version__
    assert f"| {lines[0].split('  ')[0]} | " in page.page(tmp_path)
    judged = [row for row in result["rows"] if row["goal"] is not None]
    assert all(line.endswith(("met", "MISSED")) for line in lines if "≤" in line)
    assert sum("≤" in line for line in lines) == len(judged)


@pytest.mark.usefixtures("small")
def test_a_network_is_the_sum_of_its_layers_each_in_its_faster_layout():
    class Constant:
        """A side whose first layer takes 1 s channels first and 3 s channels last, the other one 5 s."""

        def prepare(self, network: str, number: int) -> list[str]:
            self.number = number
            return ["first forward", "last forward"]

        def seconds(self, call: str) -> float:
            return {"first forward": 1.0, "last forward": 3.0}[call] if self.number == 0 else 5.0

    assert compare.measured([Constant()], "3-D", 2) == {"forward": [[7.0, 7.0]]}
    assert compare.ratio([1.0, 2.0, 4.0], [2.0, 2.0, 2.0]) == (1.0, 0.75, 1.5)


def test_only_a_convolution_calls_a_convolution(monkeypatch: pytest.MonkeyPatch):
    """A table that compares torch with torch, or attention with itself, would meet every goal."""
    calls: list[str] = []
    forward = nn.Conv2d.forward
    monkeypatch.setattr(nn.Conv2d, "forward", lambda self, x: calls.append("") or forward(self, x))
    networks = {"a": lambda: iter([square(nn.Conv2d(2, 3, 3), 8)])}
    for convert in (False, True):
        side = timing.Layers(networks, convert)
        for call in side.prepare("a", 0):
            side.calls[call]()
    assert len(calls) == 4


def test_the_goal_of_resnet_50_is_that_of_the_processor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(layers, "ratios", lambda what, names, goals, rounds: [Row(what, (1.0,), goals.get("forward"))])
    for where, goal in ((EPYC, 0.95), ("AMD EPYC (family 23), AVX2", 1.15), ("Intel(R) Xeon(R), AVX512", 1.15)):
        monkeypatch.setattr(layers, "machine", lambda device, where=where: where)
        assert next(iter(layers.networks(1))).goal == goal


def test_on_a_gpu_both_precisions_are_printed_and_ieee_is_judged(monkeypatch: pytest.MonkeyPatch):
    allowed: list[tuple[object, ...]] = []

    def ratios(what: str, names: list[str], goals: dict[str, float], rounds: int, device: torch.device) -> list[Row]:
        allowed.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        assert all(name in NETWORKS for name in names)
        return [Row(f"{what}, {compare.KINDS[kind]}", (1.0,), goals.get(kind)) for kind in compare.KINDS]

    monkeypatch.setattr(layers, "ratios", ratios)
    rows = list(layers.on_a_gpu(1, torch.device("cuda")))
    assert {*allowed} == {(False, False), (True, True)}
    assert all(re.search("IEEE float32|TF32 allowed", row.what) for row in rows)
    judged = {row.what: row.goal for row in rows if row.goal is not None}
    assert judged == {
        "ResNet-50, IEEE float32, forward": 3.0,
        "ResNet-50, IEEE float32, forward and backward": 3.0,
        "ResNet-50, IEEE float32, forward as a CUDA graph": 1.5,
        "64→64, 3×3, at 56, 112, 224, IEEE float32, forward": 2.0,
        "64→64, 3×3, at 56, 112, 224, IEEE float32, forward and backward": 2.0,
    }


@pytest.mark.parametrize("main", [command.main, export.main])
def test_an_unknown_name_is_refused(main, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["speed"])
    assert "there is no speed; there are " in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_missing_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        command.main(["--device", "cuda"])
    assert "torch sees no GPU" in capsys.readouterr().err
