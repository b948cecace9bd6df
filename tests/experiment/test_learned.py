"""The program that trains the paper's network: data, network, checkpoints, measurements and table."""

import io
import json
import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import md5
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from commands import ROOT, python
from examples.learned import data, training
from examples.learned.augmentation import augmented, mixed
from examples.learned.command import main
from examples.learned.data import FILES, RECORD_BYTES, BadInput, cifar10
from examples.learned.network import AbsolutePositions, AttentionNet, Downsample
from examples.learned.optimising import optimiser_of, rate_at
from examples.learned.resnet import resnet18
from examples.learned.results import plots, table
from examples.learned.results.maps import attention_of, centres_of
from examples.learned.results.summary import looks_of
from examples.learned.running import checkpoints
from examples.learned.running.console import Diverged
from examples.learned.running.files import records
from examples.learned.running.processes import Tell, run_in_processes
from examples.learned.settings import PRESETS, Settings, changed
from examples.learned.training import CHECKPOINT, METRICS, RESULT, Run
from examples.learned.variants import VARIANTS, Shape
from trainings import PICTURE, SMALL, ends_in_one_line, pictures, quiet, settings_of, without_times


def end_of(folder: Path) -> tuple[dict[str, torch.Tensor], str]:
    """The network's tensors, and the rest of a checkpoint as text without times."""
    state = checkpoints.read(folder / CHECKPOINT)
    assert state is not None
    network = state.pop("network")
    for name in ("seconds", "started", "metrics_bytes"):
        state.pop(name)
    torch.set_printoptions(profile="full")
    try:
        return network, repr(state)
    finally:
        torch.set_printoptions(profile="default")


def assert_same_end(folder: Path, other: Path) -> None:
    """Assert that two runs ended bit for bit equal and wrote the same metrics."""
    (network, rest), (expected, right) = end_of(folder), end_of(other)
    assert rest == right
    assert all(torch.equal(network[name], tensor) for name, tensor in expected.items())
    metrics, wanted = (records(path / METRICS, (), lines=True) for path in (folder, other))
    assert without_times(metrics) == without_times(wanted)


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Six files in the format of CIFAR-10, with four pictures each."""
    folder, random = tmp_path / "cifar-10-batches-bin", np.random.default_rng(0)
    folder.mkdir()
    for name in FILES:
        rows = random.integers(0, 256, (4, RECORD_BYTES), dtype=np.uint8)
        rows[:, 0] = random.integers(0, 10, 4)
        (folder / name).write_bytes(rows.tobytes())
    return folder


def test_cifar_is_read_as_its_format_says(cifar: Path):
    dataset = cifar10(cifar, records=4)
    assert dataset.train.shape == (20, 3, 32, 32)
    assert dataset.test.shape == (4, 3, 32, 32)
    content = (cifar / "data_batch_2.bin").read_bytes()
    assert dataset.train_labels[5] == content[RECORD_BYTES]
    mean, deviation = [], []
    for channel in range(3):
        bytes_ = [
            (cifar / name).read_bytes()[RECORD_BYTES * n + 1 + 1024 * channel :][:1024]
            for name in FILES[:5]
            for n in range(4)
        ]
        values = np.frombuffer(b"".join(bytes_), dtype=np.uint8).astype(float)
        mean.append(values.mean())
        deviation.append(values.std(ddof=1))
    # Record 1 of the second file, green, row 7, column 30.
    byte = content[RECORD_BYTES + 1 + 1024 + 7 * 32 + 30]
    assert dataset.train[5, 1, 7, 30].item() == pytest.approx((byte - mean[1]) / deviation[1], rel=1e-5)
    assert set(dataset.digests) == set(FILES)


DAMAGED: dict[str, tuple[Any, str]] = {
    "truncated": (lambda content, other: content[:-1], "test_batch.bin: 12291 bytes, not 4 × 3073 = 12292: truncated"),
    "too long": (lambda content, other: content + b"\0", "test_batch.bin: 12293 bytes"),
    "no label": (
        lambda content, other: content[: 2 * RECORD_BYTES] + b"\n" + content[2 * RECORD_BYTES + 1 :],
        "test_batch.bin: record 2 has the label 10, not 0 to 9",
    ),
    "twice": (lambda content, other: other, "two of its files are the same, byte for byte"),
    "missing": (lambda content, other: None, "test_batch.bin: No such file"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_told_in_a_line(cifar: Path, name: str):
    edit, words = DAMAGED[name]
    edited = edit(*((cifar / file).read_bytes() for file in ("test_batch.bin", "data_batch_2.bin")))
    (cifar / "test_batch.bin").unlink() if edited is None else (cifar / "test_batch.bin").write_bytes(edited)
    with pytest.raises(BadInput, match=words) as error:
        cifar10(cifar, records=4)
    assert "\n" not in str(error.value)


def test_another_archive_is_told_in_a_line(tmp_path: Path):
    (tmp_path / "other.tar.gz").write_bytes(b"something else")
    with pytest.raises(BadInput, match=r"gz: 14 bytes, MD5 \w+, where cifar-10-binary.tar.gz has 170052171 and c32a"):
        cifar10(tmp_path / "other.tar.gz")


def test_the_archive_is_read_once_its_hash_is_right(cifar: Path, monkeypatch: pytest.MonkeyPatch):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        archive.add(cifar, "cifar-10-batches-bin")
    path = cifar.parent / "cifar-10-binary.tar.gz"
    path.write_bytes(held.getvalue())
    monkeypatch.setattr(data, "ARCHIVE_BYTES", len(held.getvalue()))
    monkeypatch.setattr(data, "ARCHIVE_MD5", md5(held.getvalue(), usedforsecurity=False).hexdigest())
    whole, unpacked = cifar10(path, records=4), cifar10(cifar, records=4)
    assert whole.digests == unpacked.digests
    assert torch.equal(whole.train, unpacked.train)


def test_augmented_pictures_are_shifted_and_mirrored():
    x = torch.arange(1.0, 1 + 3 * 2 * 8 * 8).view(3, 2, 8, 8)
    drawn = torch.cat([augmented(x, len(x)) for _ in range(20)])
    padded, kinds = nn.functional.pad(x, (4, 4, 4, 4)), set()
    for number, picture in enumerate(drawn):
        source = padded[number % 3]
        fits = [
            (down, right, mirrored)
            for down in range(9)
            for right in range(9)
            for mirrored in (False, True)
            if torch.equal(
                picture,
                source[:, down : down + 8, right : right + 8].flip(2)
                if mirrored
                else source[:, down:][:, :8, right:][..., :8],
            )
        ]
        assert len(fits) == 1
        kinds.add(fits[0])
    assert len(kinds) > 40
    assert {mirrored for _, _, mirrored in kinds} == {False, True}


@given(
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from((torch.float16, torch.float32, torch.float64)),
)
def test_downsampling_can_be_undone_bit_for_bit(batch: int, channels: int, rows: int, columns: int, dtype: torch.dtype):
    x = torch.randn(batch, channels, 2 * rows, 2 * columns, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = Downsample()(x)
    assert y.shape == (batch, 4 * channels, rows, columns)
    assert torch.equal(y.unflatten(1, (-1, 2, 2)).permute(0, 1, 4, 2, 5, 3).flatten(4, 5).flatten(2, 3), x)
    for channel in range(channels):  # the four pixels of a square are four channels of one token
        assert torch.equal(y[:, 4 * channel + 1], x[:, channel, 0::2, 1::2])


@pytest.mark.parametrize("name", list(VARIANTS))
def test_every_variant_learns_all_its_parameters(name: str):
    network = training.network_of(settings_of(name), pictures())
    network.eval()
    network(pictures().train[:5]).logsumexp(1).sum().backward()
    learned = {n: p.grad for n, p in network.named_parameters() if p.requires_grad}
    assert all(gradient is not None for gradient in learned.values())
    assert [n for n, gradient in learned.items() if not gradient.any()] == []  # type: ignore[union-attr]
    assert network(pictures().test).shape == (7, 3)


def test_positions_are_those_of_one_grid():
    places = AbsolutePositions(2, (3, 4))
    assert torch.equal(places(torch.zeros(5, 2, 3, 4))[4], places.places)
    with pytest.raises(ValueError, match=r"those of \(2, 3, 4\)"):
        places(torch.zeros(5, 2, 4, 3))


def test_sizes_that_do_not_go_together_are_told_in_a_line():
    shape = replace(SMALL, heads=5)
    refused: list[tuple[str, Shape, tuple[int, int, int], str]] = [
        ("quadratic", SMALL, (1, 5, 6), r"pictures of 5 × 6 cannot be downsampled by 2: both must be even"),
        ("local", shape, PICTURE, r"5 heads are no kernel"),
        ("from-conv", shape, PICTURE, r"5 heads are no square kernel"),
        ("absolute", shape, PICTURE, r"5 heads do not divide the width 8"),
    ]
    for name, shape, picture, words in refused:
        with pytest.raises(BadInput, match=words):
            AttentionNet(VARIANTS[name], shape, picture, 3)
    network = AttentionNet(VARIANTS["quadratic"], SMALL, PICTURE, 3)
    with pytest.raises(BadInput, match="pictures of 1 × 6 × 6, where the network takes 1 × 4 × 6"):
        network(torch.zeros(1, 1, 6, 6))


@pytest.mark.parametrize(("name", "millions"), [("quadratic", 12.1), ("relative-content", 29.5)])
def test_the_papers_network_has_the_papers_parameters(name: str, millions: float):
    """The counts match the paper's table; all layers are equal, so two layers determine the count for six."""
    counts = []
    for layers in (1, 2):
        network = AttentionNet(VARIANTS[name], replace(PRESETS["paper"].shape, layers=layers), (3, 32, 32), 10)
        counts.append(sum(p.numel() for p in network.parameters() if p.requires_grad))
        assert network.attentions()[0].w_val.shape == (9, 1, 400, 400)
    assert round((counts[0] + 5 * (counts[1] - counts[0])) / 1e6, 1) == millions


def test_the_baseline_is_resnet18():
    network = resnet18(3, 10)
    assert round(sum(p.numel() for p in network.parameters()) / 1e6, 1) == 11.2
    assert sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in network.modules()) == 17


def test_the_rate_rises_and_falls_to_nothing():
    rates = [rate_at(step, 100, settings_of(warmup=0.1, rate=0.5)) for step in range(100)]
    assert rates[:10] == pytest.approx([0.05 * n for n in range(1, 11)])
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert rates[-1] < 0.001


def test_validation_pictures_are_held_back_and_test_pictures_not_read(tmp_path: Path):
    """For every seed, each picture is trained on or held back; reading the test pictures, which are NaN, would stop the run."""
    noise = pictures()
    noise = replace(noise, test=noise.test * float("nan"))
    learned, (held, labels) = training.parts_of(noise, 20)
    assert (len(learned), held.shape, len(labels)) == (40, (20, *PICTURE), 20)
    assert torch.cat([noise.train[learned], held]).unique(dim=0).equal(noise.train.unique(dim=0))
    run = Run(settings_of("quadratic", validation=20), noise, tmp_path, every=3)
    run.train(quiet)
    assert (run.steps, run.held[0].equal(held)) == (10, True)
    assert run.metrics()[-1]["accuracy"] == run.accuracy(held, labels)
    assert sorted(run.order.tolist()) == list(range(40))


@pytest.mark.parametrize("heads", [4, 9])
@pytest.mark.parametrize(
    "variant", [name for name, variant in VARIANTS.items() if not (variant.kernel or variant.encoding == "resnet")]
)
def test_quick_attention_is_the_layers_own(variant: str, heads: int):
    """Values and gradients agree in float64, for layers with all parameters random."""
    shape = replace(SMALL, layers=1, heads=heads, width=18, key_dim=heads)
    net = AttentionNet(VARIANTS[variant], shape, (1, 18, 20), 3).double()
    layer, quick = net.attentions()[0], net.blocks[0].quick
    assert callable(quick)
    learned = [p for p in layer.parameters() if p.requires_grad]
    with torch.no_grad():
        for p in learned:
            p.add_(torch.randn_like(p), alpha=0.3)
    x = torch.randn(2, 18, 9, 10, dtype=torch.float64, requires_grad=True)
    own, faster = layer(x), quick(layer, x)
    torch.testing.assert_close(faster, own, rtol=0, atol=1e-11)
    weight = torch.randn_like(own)
    gradients = [torch.autograd.grad((y * weight).sum(), [x, *learned]) for y in (own, faster)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["covariance", "quadratic", "absolute"])
def test_where_tokens_are_few_the_layer_runs_itself(name: str):
    assert AttentionNet(VARIANTS[name], replace(SMALL, layers=1), (1, 16, 16), 3).blocks[0].quick is None


def test_shuffled_labels_are_those_of_other_pictures(tmp_path: Path):
    plain, shuffled = (Run(settings_of(shuffled=s), pictures(), tmp_path / str(s), 3) for s in (False, True))
    assert plain.labels.equal(pictures().train_labels)
    assert not shuffled.labels.equal(plain.labels)
    assert shuffled.labels.sort().values.equal(plain.labels.sort().values)
    assert shuffled.held[1].equal(pictures().test_labels)


@pytest.mark.parametrize("name", ["quadratic", "covariance", "relative", "relative-content", "quadratic-cutmix"])
def test_where_heads_look_has_a_rate_of_its_own(name: str):
    settings = settings_of(name)
    network = training.network_of(settings, pictures())
    groups = optimiser_of(network, settings).param_groups
    decayed = [{id(p) for p in group["params"]} for group in groups if group["weight_decay"]]
    kept = {name for name, p in network.named_parameters() if id(p) in set().union(*decayed)}
    assert "blocks.0.attention.w_out" in kept
    assert not [name for name in kept if "parametrizations" in name or "bias" in name]
    assert sum(len(group["params"]) for group in groups) == sum(p.requires_grad for p in network.parameters())
    *_, where = groups
    names = {name for name, p in network.named_parameters() if any(p is q for q in where["params"])}
    assert where["multiple"] == settings.how.where == 25
    assert {name.split(".attention.")[1] for name in names} == {
        "relative": {"v", "offsets_1", "offsets_2"},
        "relative-content": {"v", "offsets_1", "offsets_2"},
    }.get(name, {"parametrizations.v.original0", "parametrizations.v.original1"})


@pytest.mark.parametrize(("where", "most"), [(1.0, 0.1), (100.0, 10.0)])
def test_a_centre_moves_by_no_more_than_its_rates_add_up_to(where: float, most: float, tmp_path: Path):
    run = Run(settings_of("quadratic", where=where, epochs=2, rate=0.01), pictures(), tmp_path, 100)
    run.train(quiet)
    before, after = (net.attentions()[0].centres()[1] for net in (run.untrained(), run.network))  # type: ignore[union-attr]
    moved = float((after - before).abs().max())
    assert 0 < moved <= 1.1 * run.budget() <= most  # AdamW's first steps may be a little longer than the rate
    assert [step for step, _ in run.centres] == [0]
    assert torch.allclose(run.centres[0][1][0, :, 1:], before.float())


@pytest.mark.parametrize("name", ["frozen", "frozen-local", "frozen-centres"])
def test_frozen_heads_look_where_they_did(name: str, tmp_path: Path):
    run = Run(settings_of(name, epochs=1), pictures(), tmp_path, 100)
    run.train(quiet)
    for before, after in zip(run.untrained().attentions(), run.network.attentions(), strict=True):  # type: ignore[union-attr]
        (sharpness, tau), (first_sharpness, first_tau) = after.centres(), before.centres()
        torch.testing.assert_close(tau, first_tau)
        assert torch.equal(sharpness, first_sharpness) == (name != "frozen-centres")
        assert not torch.equal(before.w_out, after.w_out)


@given(st.integers(1, 3), st.integers(2, 9), st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_cutmix_pastes_one_rectangle(batch: int, rows: int, columns: int, seed: int):
    torch.manual_seed(seed)
    x, share = mixed(torch.zeros(batch, 2, rows, columns), torch.ones(batch, 2, rows, columns))
    pasted = x[0, 0].bool()
    assert torch.equal(x, x[:1, :1].expand_as(x))
    assert torch.equal(pasted, pasted.any(1)[:, None] & pasted.any(0))
    assert share == pytest.approx(1 - float(pasted.double().mean()))


def test_training_in_bfloat16_keeps_parameters_in_float32(tmp_path: Path):
    run = Run(settings_of("quadratic", precision="bfloat16", epochs=1), pictures(), tmp_path, 100)
    run.train(quiet)
    assert {p.dtype for p in run.network.parameters()} == {torch.float32}


@pytest.mark.parametrize(("name", "padded"), [("local-padded", True), ("local-scaled", False), ("local", False)])
def test_what_helps_a_start_is_taken_apart(name: str, padded: bool):
    net = training.network_of(settings_of(name, shape=replace(SMALL, heads=9)), pictures())
    assert isinstance(net, AttentionNet)
    layer = net.attentions()[0]
    assert any(sum(layer.geometry.pads, ())) == padded
    fan_in = 9 * SMALL.width
    largest = float((layer.weight if padded else layer.w_out).detach().abs().max())
    bound = fan_in**-0.5 if name == "local-scaled" else (6 / (fan_in + SMALL.width)) ** 0.5
    assert 0.8 * bound < largest <= bound


def finished(folder: Path, settings: Settings) -> Run:
    run = Run(settings, pictures(), folder, every=3)
    run.train(quiet)
    return run


@pytest.fixture(scope="module")
def one_epoch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("run"), settings_of(epochs=1)).folder


@pytest.mark.parametrize(
    ("variant", "optimiser"), [("covariance", "adamw"), ("relative-content", "sgd"), ("resnet18", "sgd")]
)
def test_a_stopped_run_goes_on_bit_for_bit(variant: str, optimiser: str, tmp_path: Path):
    """When stopped at a checkpoint, between two, in the last step of an epoch, or in the second epoch."""
    settings = settings_of(variant, optimiser=optimiser, augment=True, rate=0.01)
    finished(tmp_path / "whole", settings)
    for stop in (2, 3, 8, 13):

        def tell(done: int, word: str, stop: int = stop) -> None:
            if done == stop:
                raise KeyboardInterrupt

        folder = tmp_path / str(stop)
        stopped = Run(settings, pictures(), folder, every=3)
        with pytest.raises(KeyboardInterrupt):
            stopped.train(tell)
        torch.manual_seed(99)
        again = Run(settings, pictures(), folder, every=3)
        assert stop - 3 <= again.done <= stop
        again.train(quiet)
        assert_same_end(folder, tmp_path / "whole")


def test_a_stop_between_metrics_and_checkpoint_writes_no_line_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    finished(tmp_path / "whole", settings_of())
    right, run = checkpoints.write, Run(settings_of(), pictures(), tmp_path / "part", every=3)

    def fail(state: dict[str, Any], path: Path) -> None:
        if state["epoch"] == 1:
            raise OSError("no space")
        right(state, path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write", fail)
        with pytest.raises(OSError, match="no space"):
            run.train(quiet)
    assert len((tmp_path / "part" / METRICS).read_bytes().splitlines()) == 1
    finished(tmp_path / "part", settings_of())
    assert_same_end(tmp_path / "part", tmp_path / "whole")


def test_a_run_goes_on_on_its_device_and_is_measured_on_any(one_epoch: Path, tmp_path: Path):
    shutil.copytree(one_epoch, tmp_path, dirs_exist_ok=True)
    state = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    state["settings"]["device"] = "cuda"
    torch.save(state, tmp_path / CHECKPOINT)
    assert Run(settings_of(epochs=1), pictures(), tmp_path, every=3).settings.record()["device"] == "cuda"
    state["epoch"] = 0
    torch.save(state, tmp_path / CHECKPOINT)
    with pytest.raises(BadInput, match="of another run: device cuda then and cpu now"):
        Run(settings_of(epochs=1), pictures(), tmp_path, every=3)


def test_a_checkpoint_that_cannot_be_used_is_told_in_a_line(one_epoch: Path, tmp_path: Path):
    shutil.copytree(one_epoch, tmp_path, dirs_exist_ok=True)
    with pytest.raises(BadInput, match=r"of another run: how.epochs 1 then and 2 now \(give another --out"):
        Run(settings_of(), pictures(), tmp_path, every=3)
    content = (tmp_path / METRICS).read_bytes()
    (tmp_path / METRICS).write_bytes(content[:-1])
    with pytest.raises(BadInput, match="shorter than its checkpoint says"):
        Run(settings_of(epochs=1), pictures(), tmp_path, every=3)
    path = tmp_path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadInput, match=r"damaged, or no checkpoint: .*\(remove it") as error:
        Run(settings_of(epochs=1), pictures(), tmp_path, every=3)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "edit",
    [
        {"network": 3}, {"network": {}}, {"epoch": 7}, {"epoch": -1}, {"position": 99}, {"metrics_bytes": -5}, {"random": None},
        {"optimiser": []}, {"settings": []},
    ],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_that_says_nonsense_is_told_in_a_line(edit: dict[str, Any], one_epoch: Path, tmp_path: Path):
    shutil.copytree(one_epoch, tmp_path, dirs_exist_ok=True)
    state = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    torch.save(state | edit, tmp_path / CHECKPOINT)
    with pytest.raises(BadInput, match=r"(damaged|no checkpoint of a run).*\(remove it") as error:
        Run(settings_of(epochs=1), pictures(), tmp_path, every=3)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"{", b"[]\n", b"{}\n", b"\xff"])
def test_damaged_records_are_told_in_a_line(content: bytes, one_epoch: Path, tmp_path: Path):
    run = Run(settings_of(epochs=1), pictures(), shutil.copytree(one_epoch, tmp_path / "none" / "seed-3"), every=3)
    for read, name in ((run.metrics, METRICS), (lambda: table.results_in(tmp_path, ["none"], [3]), RESULT)):
        (run.folder / name).write_bytes(content)
        with pytest.raises(BadInput, match="remove its folder to train this run anew"):
            read()


def test_the_untrained_network_is_the_one_that_the_run_began_with(tmp_path: Path):
    run = Run(settings_of(epochs=1), pictures(), tmp_path, every=3)
    first = {name: tensor.clone() for name, tensor in run.network.state_dict().items()}
    run.train(quiet)
    untrained, trained = run.untrained().state_dict(), run.network.state_dict()
    assert all(torch.equal(tensor, untrained[name]) for name, tensor in first.items())
    assert not torch.equal(trained["embed.weight"], untrained["embed.weight"])


def test_a_loss_that_is_no_number_stops_the_run_in_a_line(tmp_path: Path):
    spoiled = pictures()
    spoiled.train[17] = np.nan
    with pytest.raises(Diverged, match=r"^covariance, seed 3: the loss is nan at step \d of epoch 1 \(try a smaller"):
        Run(settings_of(), spoiled, tmp_path, every=3).train(quiet)


def test_centres_are_those_of_the_attention():
    network = AttentionNet(VARIANTS["local"], replace(SMALL, heads=9, alpha=50.0), (1, 10, 12), 3)
    (first, _) = attention_of(network, torch.randn(2, 1, 10, 12))
    assert first.shape == (9, 30, 5, 6)
    means, covariances = centres_of(first)
    np.testing.assert_allclose(means, network.attentions()[0].centres()[1].numpy(), atol=1e-5)
    np.testing.assert_allclose(covariances, 0, atol=1e-5)
    padded = AttentionNet(VARIANTS["from-conv"], replace(SMALL, heads=9, alpha=50.0), (1, 10, 12), 3)
    means, _ = centres_of(attention_of(padded, torch.randn(2, 1, 10, 12))[1])
    np.testing.assert_allclose(means, padded.attentions()[1].centres()[1].numpy(), atol=1e-5)


def test_the_table_says_what_the_runs_say():
    layer: dict[str, Any] = {"position": 1.0, "by_size": [0.6] * 6, "middle": [0.3] * 6, "reach": 2.5, "moved": 0.5}
    layer |= {"anywhere": 0.25, "substituted": [0.7, 0.8, 0.9, 0.9, 0.9]}
    run = {
        "test_accuracy": 0.9,
        "seconds": 10.0,
        "seed": 0,
        "parameters": 1234,
        "budget": 1.5,
        "accuracy_of_substitution": 0.9,
        "layers": [layer],
        "untrained": [layer | {"anywhere": 0.125}],
        "command": "c",
        "machine": "m",
    }
    run |= {"started": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:01:00+00:00"}
    other = run | {"test_accuracy": 0.92, "seed": 1, "layers": [layer | {"anywhere": 0.75}]}
    text = table.markdown({"local": [run, other], "resnet18": [run | {"layers": []}]})
    assert "| quadratic, local start | 1,234 | 91.00 ± 1.41 | 1.50 | 10 | 0, 1 |" in text
    assert "| ResNet-18 | 1,234 | 90.00 | – | 10 | 0 |" in text
    taps, square, *_ = text.split("\n\n")[2::2]
    assert taps.splitlines()[-1] == "| quadratic, local start | 0.12 → 0.50 [0.25, 0.75] |"
    assert "| quadratic, local start | 0.30 → 0.30 [0.30, 0.30] |" in square
    assert "with the nearest 1 × 1 convolution" in text
    assert "| quadratic, local start | 20.00 [20.00, 20.00] |" in text
    assert "Distinct nearest" not in text  # no run has measured it
    assert "- `c`: 3 runs, 2026-01-01T00:00:00+00:00 to 2026-01-01T00:01:00+00:00, 30 s of training; m." in text


def test_maps_and_centres_are_drawn_where_the_summary_has_them():
    network = AttentionNet(VARIANTS["local"], replace(SMALL, heads=9, alpha=50.0), (1, 10, 12), 3)
    looks = looks_of(network, torch.randn(2, 1, 10, 12))
    assert (looks["grid"], looks["pictures"], len(looks["layers"])) == ([5, 6], 2, 2)
    assert [np.shape(layer["tau"]) for layer in looks["layers"]] == [(9, 2)] * 2
    path = {"layer": 2, "steps": [0, 50], "log_alpha": [[0.0] * 9, [1.0] * 9], "tau": [[[0, 0]] * 9, [[1, 2]] * 9]}
    looks["path"] = path
    local = {"seeds": [0], "seconds": [1.0], "accuracy": [[0.5, 0.75]], "looks": {"seed": 0, **looks}}
    summary = {"commands": ["c"], "held": "test", "variants": {"local": local, "resnet18": {**local, "looks": None}}}
    (image,) = plots.maps(summary, "local").axes[0].images
    shown = np.asarray(np.ma.filled(np.ma.asarray(image.get_array()), np.nan))
    assert shown.shape == (2 * 6 - 1, 9 * 7 - 1)
    for layer, head in ((0, 0), (1, 5)):  # sharp: only the token at which the head looks from query (2, 3) is dark
        tile = shown[6 * layer : 6 * layer + 5, 7 * head : 7 * head + 6]
        shift = network.attentions()[layer].centres()[1][head].round().int().tolist()
        assert np.argwhere(tile > 0.5).tolist() == [[2 + shift[0], 3 + shift[1]]]
        assert np.isnan(shown[:, 6]).all()
    first = plots.centres(summary, "local").axes[0]
    dots = np.array(first.collections[0].get_offsets())
    np.testing.assert_allclose(dots[:, ::-1], network.attentions()[0].centres()[1].numpy(), atol=1e-3)
    circles: list[Any] = first.patches[:2]
    radii = [circle.get_radius() for circle in circles]
    assert np.exp(-50.0 * np.square(radii)) == pytest.approx([1 / 2, 1 / 10], rel=1e-3)  # what is outside, at α = 50
    plane, sharpness = plots.paths(summary, "local").axes
    assert np.asarray(plane.lines[1].get_xydata()).tolist() == [[0, 0], [2, 1]]
    assert sharpness.lines[0].get_ydata() == pytest.approx(np.exp([0, 1]))
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in plots.accuracy(summary).axes[0].lines}
    assert [y.tolist() for y in lines.values()] == [[50, 75]] * 2
    assert "ResNet-18" in lines


def test_the_command_trains_measures_draws_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("examples.learned.command.digits", pictures)
    sizes = "--epochs 1 --layers 2 --heads 4 --width 8 --batch 30".split()
    words = ["--variants", "covariance", "resnet18", "--seeds", "0", "1", "--out", str(tmp_path), *sizes]
    words += ["--jobs", "1"]
    assert main(words) == 0
    first = capsys.readouterr().out
    assert "| quadratic, learned Σ and τ (non-isotropic) |" in first
    assert f"`python -m examples.learned --variants covariance resnet18 --seeds 0 1 --out {tmp_path}" in first
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == first.removesuffix("\n")
    drawn = {"accuracy.svg", "seconds.svg", "centres-covariance.svg", "maps-covariance.svg"}
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == drawn | {"table.md", "summary.json"}
    result = tmp_path / "covariance" / "seed-1" / RESULT
    assert json.loads(result.read_text(encoding="utf-8"))["settings"]["seed"] == 1
    written = result.stat().st_mtime_ns
    assert main([*words, "--no-plots"]) == 0
    assert capsys.readouterr().out == first
    assert result.stat().st_mtime_ns == written


BAD_INPUT = {
    "--epochs 0": (2, "--epochs is 0, not a positive number"),
    "--rate nan": (2, "--rate is nan, not a positive number"),
    "--preset paper": (2, "--preset paper learns from CIFAR-10: give --data"),
    "--validation 1437": (2, "1437 pictures cannot be held back of 1437"),
    "--validation -1": (2, "--validation is -1, not a whole number from 0 on"),
    "--data nowhere": (2, "nowhere: No such file"),
    "--heads 8": (2, "8 heads are no kernel"),
    "--rate 1e30 --variants quadratic --jobs 1": (1, "quadratic, seed 0: the loss is nan at step"),
    "--rate 1e38 --epochs 1 --variants quadratic --jobs 1": (1, "quadratic, seed 0: a step is longer than"),
    "--rate 1e30 --variants quadratic --batch 5000 --epochs 1 --jobs 1": (
        1,
        "quadratic, seed 0: outputs are no numbers",
    ),
    "--seeds -1": (2, "--seeds is -1, not a whole number from 0 on"),
    "--seeds 4294967296": (2, "--seeds is 4294967296, more than 4294967295"),
    "--threads 99999999999": (2, "--threads is 99999999999, more than"),
    "--jobs 0": (2, "--jobs is 0, not a positive number"),
    "--out taken --jobs 1": (2, "[Errno 20] Not a directory: 'taken/"),
    "--out taken --jobs 2": (2, "[Errno 20] Not a directory: 'taken/"),
}


@pytest.mark.parametrize("words", BAD_INPUT)
def test_bad_input_is_one_line(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    code, reason = BAD_INPUT[words]
    ends_in_one_line(lambda: main(words.split()), code, f"error: {reason}", capsys)
    assert code != 2 or not [*tmp_path.glob("learned-runs/*")]  # bad input is reported before anything starts


def test_a_stopped_command_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def stop(self: Run, tell: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "train", stop)
    assert main(["--out", str(tmp_path), "--jobs", "1"]) == 130
    assert "the same command goes on from the last checkpoint" in capsys.readouterr().err


def squares() -> Callable[[int, Tell], None]:
    """The work of a process in the tests below."""

    def square(number: int, tell: Tell) -> None:
        if number == 13:
            raise BadInput("thirteen")
        if number == 14:
            os._exit(1)
        if number == 15:
            raise EOFError("fifteen")
        tell(number, number**2, "squared")

    return square


def test_every_thing_is_done_once_and_told():
    reports: list[tuple[int, int, int]] = []

    def tell(thing: int, done: int, steps: int, word: str, ended: bool) -> None:
        if ended:
            reports.append((thing, done, steps))

    run_in_processes(range(5), squares, 2, tell)
    assert sorted(reports) == [(n, n, n**2) for n in range(5)]


@pytest.mark.parametrize(
    ("number", "error", "words"),
    [(13, BadInput, "thirteen"), (14, BadInput, "^14: its process was killed"), (15, EOFError, "fifteen")],
)
def test_what_stops_one_of_them_stops_all(number: int, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        run_in_processes([1, number, *range(2, 9)], squares, 2, lambda *_: None)
    assert not multiprocessing.active_children()


@pytest.mark.deep
def test_an_interrupted_command_ends_all_its_processes(tmp_path: Path):
    words = "--variants quadratic --epochs 1000 --checkpoint-every 1".split()
    command = [sys.executable, "-W", "error", "-m", "examples.learned", *words, "--jobs", "2", "--out", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    until = time.monotonic() + 120
    try:
        while len([*tmp_path.glob("*/*/checkpoint.pt")]) < 2 and time.monotonic() < until:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)  # like a terminal: to the command and its processes
        _, printed = process.communicate(timeout=240)  # enough for a busy machine
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 130, printed
    assert b"the same command goes on from the last checkpoint" in printed
    assert b"Traceback" not in printed
    written = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/*/checkpoint.pt"))]
    time.sleep(2)  # long enough for many checkpoints
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/*/checkpoint.pt"))] == written


@pytest.mark.parametrize(
    ("folder", "words", "option"),
    [("learned", [], "--checkpoint-every"), ("taught", ["teacher"], "--heads"), ("taught", ["cnn"], "--validate")],
)
def test_an_experiment_runs_as_a_module_and_as_a_folder(
    folder: str, words: list[str], option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    done = python("-m", f"examples.{folder}", *words, "--help")
    assert done.returncode == 0, done.stderr
    assert option in done.stdout
    monkeypatch.setattr(sys, "argv", [folder, *words, "--help"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "examples" / folder), run_name="__main__")
    assert ended.value.code == 0
    assert option in capsys.readouterr().out


def test_a_preset_takes_what_the_user_gives():
    preset = changed(PRESETS["paper"], epochs=3, heads=16, width=None)
    assert (preset.epochs, preset.shape.heads, preset.shape.width, preset.rate) == (3, 16, 400, 0.1)
