"""Teachers and students, and networks started from a CNN: counts, starting points, and errors on bad input."""

import copy
import json
import signal
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import construct
import verify
from commands import ROOT, python
from examples.learned.data import BadInput, digits
from examples.learned.running.console import Diverged
from examples.taught import cnn as cnn_command
from examples.taught import convert, networks, plots, tasks, teacher
from examples.taught.command import METRICS, SUMMARY, TABLE, main
from examples.taught.counting import NEAR, count
from examples.taught.finetuning import FASTER, Course, continue_training, groups_of, layers_of
from examples.taught.networks import WAYS, Heads, as_attention, attentions, enlarged, parameters_of
from examples.taught.parts import FOLDER
from examples.taught.patches import LEARNED, patches
from examples.taught.students import Setting, Students, scale_of, shifts_of, teachers_of
from examples.taught.tasks import TASKS, task_of
from examples.taught.teaching import measured, taught, teach
from trainings import ends_in_one_line, pictures, quiet, without_times

SETTING = Setting(9, 3, "paper", 1.0, 0.05, "noise", 6, 2, 30, 4, 0.02)
COURSE = Course(1, 16, 1e-3)
HEADS = Heads(2, 5, 4.0)


KERNELS = st.sampled_from((1, 3, 5))
OFFSETS = st.floats(-NEAR, NEAR)


@given(KERNELS, st.randoms(use_true_random=False), st.data())
def test_any_order_of_the_shifts_within_the_tolerance_is_a_bijection(kernel: int, random: object, data: st.DataObject):
    shifts = data.draw(st.permutations(shifts_of(kernel)))
    centres = [[t + data.draw(OFFSETS) for t in shift] for shift in shifts]
    counts = count(centres, kernel)
    assert (counts.asked, counts.found, counts.covered) == ("bijection", True, kernel**2)
    assert (counts.shared, counts.between, counts.outside) == (0, 0, 0)
    fewer = count(centres[1:], kernel)
    if kernel > 1:
        assert (fewer.asked, fewer.found) == ("injective", True)
    more = count([*centres, data.draw(st.sampled_from([[0.5, 0.0], [99.0, 0.0], [0.0, 0.0]]))], kernel)
    assert (more.asked, more.found) == ("cover", True)


@given(st.lists(st.tuples(*[st.floats(-4, 4)] * 2), min_size=1, max_size=20), st.sampled_from((1, 3)))
def test_every_head_is_counted_once(centres: list[tuple[float, float]], kernel: int):
    """Against a count in the other direction, from shifts to heads."""
    counts = count(centres, kernel)
    on = {
        shift: sum(all(abs(t - s) <= NEAR for t, s in zip(tau, shift, strict=True)) for tau in centres)
        for shift in shifts_of(kernel)
    }
    assert counts.covered == sum(n > 0 for n in on.values())
    assert counts.shared == sum(n > 1 for n in on.values())
    assert sum(on.values()) + counts.between + counts.outside == len(centres)


@pytest.mark.parametrize("nothing", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_a_centre_that_is_nowhere_is_between(nothing: float):
    assert count([(nothing, 0.0)], 1).between == 1


def test_held_out_patches_share_no_pixel_with_the_others():
    dataset = patches("images", 7)
    columns = [image.shape[2] for image in (*dataset.learn, *dataset.held)]
    assert columns == [round(LEARNED * 640)] * 2 + [640 - round(LEARNED * 640)] * 2
    drawn = dataset.draw(5, torch.Generator().manual_seed(0), held_out=True)
    assert drawn.shape == (5, 3, 7, 7)
    windows = [image.unfold(1, 7, 1).unfold(2, 7, 1) for image in dataset.held]  # (3, rows, columns, 7, 7)
    for patch in drawn:
        fits = [(w == patch[:, None, None]).all(-1).all(-1).all(0).any() for w in windows]
        assert sum(map(bool, fits)) == 1
    with pytest.raises(BadInput, match="--side is 161, and a held-out part is 427 × 160 pixels"):
        patches("images", 161)


@pytest.mark.parametrize(("kernel", "heads"), [(1, 1), (3, 9), (3, 12)])
def test_a_student_can_be_its_teacher_exactly(kernel: int, heads: int):
    """By the theorem, with heads on Δ_K and the teacher's taps, the loss is 0 up to rounding, on pictures and on noise."""
    setting = replace(SETTING, kernel=kernel, heads=heads)
    students, teachers = Students(setting, [3, 5]), teachers_of(setting, [3, 5])
    students.put_on_solution(teachers, 1024.0)
    for data in ("images", "noise"):
        x = patches(data, 6).draw(8, torch.Generator().manual_seed(0))
        errors = students.errors(teachers, x, scale_of(teachers, 2, x))
        assert errors.max() < 1e-12
    for place, (weight, bias) in enumerate(
        zip(teachers.get_parameter("weight").split(2), teachers.get_parameter("bias").split(2), strict=True)
    ):
        conv = nn.Conv2d(3, 2, kernel)
        conv.load_state_dict({"weight": weight, "bias": bias})
        alone = students.alone(place)
        if heads == kernel**2:
            assert torch.equal(alone.weight, weight)
            assert verify.certify(conv, alone, grid=(6, 6), input_bound=4.0).verdict.name == "PROVED"
    with pytest.raises(ValueError, match="8 heads cannot stand on 9 shifts"):
        Students(replace(SETTING, heads=8), [0]).put_on_solution(teachers, 8.0)


def test_the_students_stand_side_by_side_and_learn_as_if_alone():
    together, looks = taught(SETTING, [4, 7], patches("noise", 6), quiet)
    alone, other = taught(SETTING, [7], patches("noise", 6), quiet)
    torch.testing.assert_close(together.centres()[1][1], alone.centres()[1][0], atol=1e-3, rtol=1e-3)
    assert looks[-1]["error"][1] == pytest.approx(other[-1]["error"][0], rel=1e-2)
    assert looks[-1]["error"][1] < looks[0]["error"][1]
    assert not together.layer.w_out.detach()[together.mask == 0].any()
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        both = together.layer(x)
        parts = [together.alone(place)(x) for place in (0, 1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), both)


def test_a_student_on_the_solution_stays_there():
    setting = replace(SETTING, steps=40)
    students, teachers = Students(setting, [0, 1]), teachers_of(setting, [0, 1])
    students.put_on_solution(teachers, 16.0)
    looks = teach(students, teachers, patches("noise", 6), quiet)
    # Adam first moves every number by its learning rate, even for tiny gradients: it jitters but does not drift.
    assert max(looks[-1]["error"]) < 1e-3
    for row in measured(students, looks):
        assert row["count"] == row["first"]
        assert row["count"]["found"]
        assert row["kernel_apart"] < 0.02
        assert row["inside"] > 0.999


def test_alpha_is_driven_up_where_that_is_asked_for():
    setting = replace(SETTING, steps=20, floor=32.0)
    assert [setting.least_alpha(step) for step in (0, 10)] == [0, 0]
    assert [setting.least_alpha(step) for step in (12, 20)] == pytest.approx([2.0, 32.0])
    assert SETTING.least_alpha(SETTING.steps) == 0
    students, looks = taught(setting, [0], patches("noise", 6), quiet)
    assert students.centres()[0].min() > 31.9
    assert max(looks[10]["alpha"][0]) < 2


def test_measuring_tells_a_student_that_is_lost():
    students, teachers = Students(SETTING, [0]), teachers_of(SETTING, [0])
    students.put_on_solution(teachers, 1024.0)
    with torch.no_grad():
        students.tau[0] = students.tau[1]
    looks = teach(students, teachers, patches("noise", 6), quiet)[:1]
    (row,) = measured(students, looks)
    assert (row["count"]["found"], row["count"]["shared"], row["count"]["covered"]) == (False, 1, 8)
    assert row["kernel_apart"] > 0.1
    looks[-1]["error"] = [float("nan")]
    with pytest.raises(Diverged, match=r"seed 0: the held-out error is no number \(try a smaller --rate\)"):
        measured(students, looks)


@pytest.fixture(scope="module")
def cnn() -> nn.Sequential:
    return networks.trained_on(digits(), 0, 3, 8)


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return digits().test[:48]


def attention(cnn: nn.Sequential, way: str, x: torch.Tensor) -> nn.Module:
    return as_attention(cnn, WAYS[way], HEADS, 0, x)


def test_attention_starts_as_the_cnn_and_what_is_added_learns(cnn: nn.Sequential, x: torch.Tensor):
    first = copy.deepcopy(cnn.state_dict())
    with torch.no_grad():
        right, sharp = cnn(x), construct.convert(cnn)(x)
        network, moving = (attention(cnn, way, x) for way in ("heads", "moving"))
        assert torch.equal(network(x), sharp)
        assert (sharp - right).abs().max() < 1e-5 * right.abs().max()
        assert (moving(x) - sharp).abs().max() > 0.01  # lowering α changes the output
    (slow,) = groups_of(network, 1e-3)
    still, fast = groups_of(moving, 1e-3)
    assert [group["lr"] for group in (slow, still, fast)] == [1e-3, 1e-3, FASTER * 1e-3]
    layers = attentions(network)
    own = sum(layer.heads - HEADS.heads for layer in layers.values())
    assert sum(p.numel() for p in fast["params"]) == 3 * own  # log α and τ
    assert parameters_of(moving) == parameters_of(network) + 3 * own
    assert all(torch.equal(tensor, first[name]) for name, tensor in cnn.state_dict().items())
    assert parameters_of(network) > parameters_of(cnn)


@pytest.mark.parametrize("more", ["channels", "hidden"])
def test_the_larger_cnn_has_as_many_parameters_and_no_more_than_it_needs(more: str, cnn: nn.Sequential):
    size = enlarged(digits(), 8, more, HEADS)
    wanted = parameters_of(attention(cnn, "heads", digits().train))
    key = "hidden" if more == "hidden" else "width"
    fewer = {**size, key: size[key] - 1}
    larger, less = (parameters_of(networks.cnn_of(digits(), **sizes)) for sizes in (size, fewer))
    assert less < wanted <= larger
    assert networks.cnn_of(digits(), **size)(digits().test[:2]).shape == (2, 10)


@pytest.mark.parametrize("way", ["heads", "moving"])
def test_layers_are_measured_before_and_after(way: str, cnn: nn.Sequential, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(networks, "TOKENS", 4)  # mix and head
    network, task = attention(cnn, way, digits().train), task_of("shifted", digits(), 64, 40, 0)
    before = {row["layer"]: row for row in layers_of(network, task.tests["shifted"][0], HEADS.heads)}
    rows = continue_training(network, task, COURSE, 0, way, quiet)
    after = {row["layer"]: row for row in layers_of(network, task.tests["shifted"][0], HEADS.heads)}
    assert [row["epoch"] for row in rows] == [0, 1]
    assert [*before] == [*after] == ["mix", "head"]
    for layer, row in before.items():
        assert row["share"] == 0 < after[layer]["share"], layer
        assert row["moved"] == pytest.approx([0, 0], abs=1e-6), layer
        assert (row["distance"] < 1e-6) == (way == "heads" or layer == "head"), layer
        assert row["distance"] < after[layer]["distance"] < 1, layer
        assert row["alpha"] == pytest.approx([4.0] * 2 if way == "moving" else [1024.0] * 2), layer
        assert (after[layer]["moved"] != [0, 0]) == (way == "moving"), layer
    assert layers_of(cnn, digits().test[:4], HEADS.heads) == []


def test_training_that_diverges_is_told_in_a_line(cnn: nn.Sequential):
    spoiled = replace(digits(), train=digits().train * float("nan"))
    task = task_of("same", spoiled, 32, 8, 0)
    with pytest.raises(Diverged, match=r"^cnn: the loss is nan at step 1 \(try a smaller --rates\)"):
        continue_training(copy.deepcopy(cnn), task, COURSE, 0, "cnn", quiet)


def test_shifted_digits_are_digits_shifted(x: torch.Tensor):
    moved = tasks.shifted(x, torch.Generator().manual_seed(0))
    padded, kinds = nn.functional.pad(x, (2,) * 4), set()
    for picture, source in zip(moved, padded, strict=True):
        fits = [(r, c) for r, c in product(range(5), repeat=2) if torch.equal(source[:, r : r + 8, c : c + 8], picture)]
        assert fits
        kinds.update(fits)
    assert len(kinds) > 10


def test_occluded_pictures_lack_a_square(x: torch.Tensor):
    whole, kinds = x + 9, set()
    for picture, source in zip(tasks.occluded(whole, torch.Generator().manual_seed(0)), whole, strict=True):
        rows, columns = (picture[0] == 0).nonzero().T
        assert (len(rows), rows.max() - rows.min(), columns.max() - columns.min()) == (16, 3, 3)
        assert torch.equal(torch.where(picture == 0, source, picture), source)
        kinds.add((int(rows.min()), int(columns.min())))
    assert len(kinds) > 10
    assert (whole != 0).all()


@given(st.integers(0, 2**31), st.integers(1, 12))
def test_two_squares_are_of_one_colour_or_of_two(seed: int, number: int):
    like = torch.zeros(3, 26, 30)
    pictures, labels, gaps = tasks.pairs(like, number, torch.Generator().manual_seed(seed))
    noise = tasks.NOISE * 5
    assert pictures.shape == (number, 3, 26, 30)
    for picture, label, gap in zip(pictures, labels.tolist(), gaps.tolist(), strict=True):
        on = [((picture - torch.tensor(kind)[:, None, None]).abs() < noise).all(0) for kind in tasks.COLOURS]
        sizes = sorted(int(where.sum()) for where in on)[-2:]
        assert sizes == pytest.approx([0, 128] if label else [64, 64], abs=4)  # five deviations, 384 numbers
        assert 0 <= gap <= 14
        corners = [where.nonzero().double().median(0).values for where in on if where.sum() > 32]
        if not label:
            assert float((corners[0] - corners[1]).abs().max()) - 8 == pytest.approx(gap, abs=1)


def test_validation_pictures_are_left_out_of_training():
    pictures = digits()
    left, size = tasks.validation_of(pictures, 100)
    assert size == 90
    assert torch.equal(left.test, pictures.train[90:100])
    assert torch.equal(torch.cat([left.train[:90], left.test, left.train[90:]]), pictures.train)
    for name in ("same", "shifted"):
        task = task_of(name, left, size, None, 1)
        drawn = task.draw(torch.arange(task.size), torch.Generator().manual_seed(0))[1]
        assert torch.equal(drawn, pictures.train_labels[:90])
        assert torch.equal(next(iter(task.tests.values()))[1], pictures.train_labels[90:100])


def test_the_squares_of_the_test_are_drawn_by_themselves():
    large = replace(digits(), train=torch.zeros(40, 3, 32, 32), test=torch.zeros(60, 3, 32, 32))
    held = []
    for seed in (0, 1):
        task = task_of("apart", large, 40, 30, seed)
        order = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(task.size, generator=order)[:30]  # as a run begins; as many as the test has
        drawn, labels = task.draw(chosen, order)
        assert (drawn.shape, {*labels.tolist()}) == ((30, 3, 32, 32), {0, 1})
        sizes = [len(labels) for _, labels in task.tests.values()]
        assert sizes[0] == sum(sizes[1:]) == 30
        held.append(task.tests["apart"][0])
        assert not (drawn == held[-1]).flatten(1).all(1).any()
    assert not torch.equal(*held)


SMALL = {
    "teacher": "--heads 4 10 --starts paper --seeds 0 1 --steps 3 --batch 2 --side 5 --out-channels 1".split(),
    "cnn": "--seeds 0 --epochs 1 --train 16 --test 40 --pretrained 1 --longer 2 --heads 1 --key-dim 4".split(),
}


def run(folder: Path, *words: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary and the metrics of a command that ends well."""
    assert main([*words, "--out", str(folder)]) == 0
    lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
    return json.loads((folder / SUMMARY).read_text(encoding="utf-8")), [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", [*SMALL])
def test_a_command_writes_metrics_a_summary_a_table_and_pictures(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    summary, lines = run(tmp_path, name, *SMALL[name], "--jobs", "1")
    text = capsys.readouterr().out
    assert (tmp_path / TABLE).read_text(encoding="utf-8") == text
    assert f"`python -m examples.taught {name} " in text
    figures = {f"{figure}.svg" for figure in plots.FIGURES[name]}
    assert {path.name for path in tmp_path.iterdir()} == {METRICS, SUMMARY, TABLE, FOLDER} | figures
    if name == "teacher":
        assert [group["heads"] for group in summary["groups"]] == [4, 10, 4, 10]
        assert [line["step"] for line in lines if line["group"] == 0] == [0, 1, 2, 3]
        assert "| images | 4 | paper | injective | 0 of 2 | " in text
    else:
        epochs = [(way, epoch) for way in WAYS for epoch in range(3 if WAYS[way].longer else 2)]
        expected = [(task, *which) for task in ("same", "shifted") for which in epochs]
        assert [(line["task"], line["way"], line["epoch"]) for line in lines] == expected
        assert "| shifted | attention, added heads | mix |" in text


@pytest.mark.parametrize("picture", [(3, 8, 12), (1, 28, 28)])
def test_a_converted_cnn_predicts_as_it_did(
    picture: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    noise = pictures(30, picture)
    monkeypatch.setattr(convert, "read_once", lambda place: noise)
    summary, _ = run(tmp_path, "convert", "--data", str(tmp_path), "--width", "4", "--epochs", "1")
    assert "converted, 7 of 7 predictions are the same." in capsys.readouterr().out
    ladder = summary["runs"][0]["ladder"]
    assert [row["alpha"] for row in ladder] == [1024, 16, 8, 4, 2]
    assert ladder[0]["apart"] < 1e-5 < 0.01 < ladder[-1]["apart"]  # 0 where both sum in the same order


def test_a_cnn_of_other_pictures_goes_on_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """On validation pictures, with a run for each rate, and two objects far apart."""
    noise = pictures(30, (3, 24, 28))
    monkeypatch.setattr(cnn_command, "read_once", lambda place: noise)
    monkeypatch.setattr(networks, "TOKENS", 42)  # mix and head
    words = (
        f"cnn --data {tmp_path} --width 2 --pretrained 1 --test 6 --tasks apart --ways cnn heads --epochs 1 --seeds 0"
    )
    more = ["--jobs", "1", "--rates", "1e-3", "1e-2", "--validate"]
    summary, _ = run(tmp_path, *words.split(), "--train", "12", *more)
    runs = summary["runs"]
    assert [(one["way"], one["rate"]) for one in runs] == [*product(("cnn", "heads"), (1e-3, 1e-2))]
    assert all(one["after"].keys() <= {"apart", "beside", "between", "far"} for one in runs)
    assert "apart, validation, before, %" in capsys.readouterr().out
    assert main([*words.split(), "--train", "999", "--out", str(tmp_path)]) == 2


def test_pictures_that_cannot_be_halved_are_refused():
    with pytest.raises(BadInput, match="6 × 8 cannot be halved twice"):
        networks.cnn_for(1, (6, 8), 10, 4)


NOISE = ["--data", "noise"]
"""Command-line words for noise."""


@pytest.mark.parametrize("name", ["teacher", pytest.param("cnn", marks=pytest.mark.deep)])
def test_parts_beside_each_other_are_those_of_one_after_the_other(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = [name, *SMALL[name], "--no-plots"]
    words += ["--ways", "cnn", "heads", "--tasks", "same"] if name == "cnn" else NOISE
    one, two = (run(tmp_path / jobs, *words, "--jobs", jobs) for jobs in ("1", "2"))
    assert capsys.readouterr().out.count(", 2 at once") == 1
    assert without_times([*one]) == without_times([*two])


KILLED = """
import os, signal
from examples.taught import command, parts

def tell(*_):
    if len([*parts.Path({folder!r}).glob("parts/*.json")]) == 1:
        os.kill(os.getpid(), signal.SIGKILL)

write = parts.replaced
parts.replaced = lambda path, text: (write(path, text), tell())
command.main({words!r})
"""


def test_a_killed_command_loses_no_part_that_was_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["teacher", *SMALL["teacher"], *NOISE, "--no-plots", "--jobs", "1"]
    folder = tmp_path / "killed"
    done = python("-c", KILLED.format(folder=str(folder), words=[*words, "--out", str(folder)]))
    assert done.returncode == -signal.SIGKILL, done.stderr
    (first,) = (folder / FOLDER).glob("*.json")
    written = first.stat().st_mtime_ns
    went_on = run(folder, *words)
    assert "s (1 of 2 parts are of an earlier run); " in capsys.readouterr().out
    assert first.stat().st_mtime_ns == written
    assert without_times([*went_on]) == without_times([*run(tmp_path / "whole", *words)])
    content = first.read_text(encoding="utf-8")
    other = content.replace('"batch": 2', '"batch": 3', 1)
    for reason, damaged in {"damaged": content[:-9], "of another part": other}.items():
        first.write_text(damaged, encoding="utf-8")
        capsys.readouterr()
        ends_in_one_line(lambda: main([*words, "--out", str(folder)]), 2, f"error: {first}: {reason}", capsys)


def results(name: str) -> Any:
    return json.loads((ROOT / "docs" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("kind", "name"),
    [(teacher, "figures/taught_teacher")]
    + [(teacher, f"results/taught_{name}") for name in ("explored", "sharpened")]
    + [(convert, "results/taught_converted")]
    + [(cnn_command, f"results/taught_{task}") for task in TASKS],
)
def test_the_tables_of_the_page_are_those_of_the_committed_results(kind: Any, name: str):
    page = (ROOT / "docs/taught.md").read_text(encoding="utf-8").splitlines()
    wanted = [line for line in kind.table(results(name)).splitlines() if line.startswith("|")]
    assert len(wanted) >= 6
    assert not [line for line in wanted if line not in page]
    assert name.startswith("figures") or results(name)["command"] in " ".join(page)


def test_rates_are_those_that_validation_chose():
    """Of the rates that are equally good, the smallest."""
    chosen: dict[tuple[str, str], dict[str, float]] = {}
    for task in TASKS:
        rates = chosen["digits" if task == "shifted" else "CIFAR-10", task] = {}
        tried = results(f"results/taught_rates_{task}")["runs"]
        assert all(run["validate"] and run["seed"] == 0 for run in tried)
        for run in sorted(tried, key=lambda run: (next(iter(run["after"].values())), -run["rate"])):
            rates[run["way"]] = run["rate"]
        for run in results(f"results/taught_{task}")["runs"]:
            assert run["rate"] == rates[run["way"]]
            assert not run["validate"]
    assert chosen == cnn_command.RATES


def test_attention_reads_as_many_pictures_as_the_cnn_before_it_learns():
    for task in TASKS:
        runs = {(run["way"], run["seed"]): run["before"] for run in results(f"results/taught_{task}")["runs"]}
        for way, seed in runs:
            if way == "heads":
                assert runs[way, seed] == runs["cnn", seed]
