"""The program that trains the paper's network: data, network, checkpoints, measurements and table."""

import io
import shutil
import tarfile
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
from examples.learned.settings import PRESETS, Settings, changed
from examples.learned.training import CHECKPOINT, METRICS, RESULT, Run
from examples.learned.variants import VARIANTS, Shape
from trainings import PICTURE, SMALL, pictures, quiet, settings_of, without_times


def same(one: Any, other: Any) -> bool:
    """Whether two checkpoints are the same, bit for bit, but for times."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return all(same(one[name], other[name]) for name in one.keys() - {"seconds", "started", "metrics_bytes"})
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def assert_same_end(folder: Path, other: Path) -> None:
    """Assert that two runs ended the same and wrote the same metrics."""
    assert same(*(torch.load(path / CHECKPOINT, weights_only=True) for path in (folder, other)))
    metrics, wanted = (records(path / METRICS, (), lines=True) for path in (folder, other))
    assert without_times(metrics) == without_times(wanted)


def finished(folder: Path, settings: Settings) -> Run:
    run = Run(settings, pictures(), folder, every=3)
    run.train(quiet)
    return run


@pytest.fixture(scope="module")
def one_epoch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("run"), settings_of(epochs=1)).folder


@pytest.fixture
def edited(one_epoch: Path, tmp_path: Path) -> Callable[..., Run]:
    """Read a finished run of one epoch after an edit of its checkpoint, as the first epoch of a run of some epochs."""

    def run(edit: dict[str, Any], epochs: int = 1) -> Run:
        shutil.copytree(one_epoch, tmp_path, dirs_exist_ok=True)
        state = torch.load(tmp_path / CHECKPOINT, weights_only=True)
        torch.save(state | edit, tmp_path / CHECKPOINT)
        return Run(settings_of(epochs=epochs), pictures(), tmp_path, every=3)

    return run


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
    content = b"".join((cifar / name).read_bytes() for name in FILES)
    labels, pixels = np.split(np.frombuffer(content, dtype=np.uint8).reshape(24, RECORD_BYTES), [1], axis=1)
    pixels = pixels.reshape(24, 3, 32, 32).astype(float)
    channels = pixels[:20].transpose(1, 0, 2, 3).reshape(3, -1)
    pixels -= channels.mean(1)[:, None, None]
    pixels /= channels.std(1, ddof=1)[:, None, None]
    np.testing.assert_allclose(torch.cat([dataset.train, dataset.test]), pixels, atol=1e-6)
    assert torch.cat([dataset.train_labels, dataset.test_labels]).tolist() == labels[:, 0].tolist()
    assert len(dataset.train) == 20
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
    padded, kinds = nn.functional.pad(x, (4, 4, 4, 4)), set()
    for number, picture in enumerate(torch.cat([augmented(x, len(x)) for _ in range(20)])):
        windows = padded[number % 3].unfold(1, 8, 1).unfold(2, 8, 1).permute(1, 2, 0, 3, 4)  # (9, 9, channels, 8, 8)
        both = torch.stack([windows, windows.flip(-1)])
        (fit,) = (both == picture).flatten(3).all(-1).nonzero().tolist()
        kinds.add(tuple(fit))
    assert len(kinds) > 40
    assert {mirrored for mirrored, _, _ in kinds} == {0, 1}


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


def test_a_run_goes_on_on_its_device_and_is_measured_on_any(edited: Callable[..., Run]):
    cuda = edited({}).settings.record() | {"device": "cuda"}
    assert edited({"settings": cuda}).settings.record()["device"] == "cuda"
    with pytest.raises(BadInput, match="of another run: device cuda then and cpu now"):
        edited({"settings": cuda, "epoch": 0})


def test_a_checkpoint_of_other_settings_or_metrics_is_told_in_a_line(edited: Callable[..., Run]):
    with pytest.raises(BadInput, match=r"of another run: how.epochs 1 then and 2 now \(give another --out"):
        edited({}, epochs=2)
    with pytest.raises(BadInput, match="shorter than its checkpoint says"):
        edited({"metrics_bytes": 10**6})


@pytest.mark.parametrize(
    "edit",
    [
        None, {"network": 3}, {"network": {}}, {"epoch": 7}, {"epoch": -1}, {"position": 99}, {"metrics_bytes": -5},
        {"random": None}, {"optimiser": []}, {"settings": []},
    ],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_that_says_nonsense_is_told_in_a_line(edit: dict[str, Any] | None, edited: Callable[..., Run]):
    def run() -> Run:
        if edit is not None:
            return edited(edit)
        path = edited({}).folder / CHECKPOINT
        path.write_bytes(path.read_bytes()[:-100])
        return Run(settings_of(epochs=1), pictures(), path.parent, every=3)

    with pytest.raises(BadInput, match=r"^[^\n]*(damaged|no checkpoint of a run)[^\n]*\(remove it[^\n]*$"):
        run()


@pytest.mark.parametrize("content", [b"{", b"[]\n", b"{}\n", b"\xff"])
def test_damaged_records_are_told_in_a_line(content: bytes, one_epoch: Path, tmp_path: Path):
    run = Run(settings_of(epochs=1), pictures(), shutil.copytree(one_epoch, tmp_path / "none" / "seed-3"), every=3)
    for read, name in ((run.metrics, METRICS), (lambda: table.results_in(tmp_path, ["none"], [3]), RESULT)):
        (run.folder / name).write_bytes(content)
        with pytest.raises(BadInput, match="remove its folder to train this run anew"):
            read()


def test_the_untrained_network_is_the_one_that_the_run_began_with(tmp_path: Path):
    """And parameters stay in float32 where products are in bfloat16."""
    run = Run(settings_of(epochs=1, precision="bfloat16"), pictures(), tmp_path, every=3)
    first = run.untrained().state_dict()
    torch.testing.assert_close(run.network.state_dict(), first, rtol=0, atol=0)
    run.train(quiet)
    torch.testing.assert_close(run.untrained().state_dict(), first, rtol=0, atol=0)
    assert not torch.equal(run.network.state_dict()["embed.weight"], first["embed.weight"])
    assert {p.dtype for p in run.network.parameters()} == {torch.float32}


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
    layer = {"by_size": [0.6] * 6, "middle": [0.3] * 6, "anywhere": 0.25, "substituted": [0.7, 0.8, 0.9, 0.9, 0.9]}
    run: dict[str, Any] = {"test_accuracy": 0.9, "seconds": 10.0, "seed": 0, "parameters": 1234, "budget": 1.5}
    run |= {"layers": [layer], "untrained": [layer | {"anywhere": 0.125}], "accuracy_of_substitution": 0.9}
    run |= dict.fromkeys(("command", "machine", "started", "ended"), "c")
    other = run | {"test_accuracy": 0.92, "seed": 1, "layers": [layer | {"anywhere": 0.75}]}
    text = table.markdown({"local": [run, other], "resnet18": [run | {"layers": []}]})
    assert "| quadratic, local start | 1,234 | 91.00 ± 1.41 | 1.50 | 10 | 0, 1 |" in text
    assert "| ResNet-18 | 1,234 | 90.00 | – | 10 | 0 |" in text
    taps, square, *_ = text.split("\n\n")[2::2]
    assert taps.splitlines()[-1] == "| quadratic, local start | 0.12 → 0.50 [0.25, 0.75] |"
    assert "| quadratic, local start | 0.30 → 0.30 [0.30, 0.30] |" in square
    assert "| quadratic, local start | 20.00 [20.00, 20.00] |" in text
    assert "Distinct nearest" not in text  # no run has measured it


def test_maps_and_centres_are_drawn_where_the_summary_has_them():
    network = AttentionNet(VARIANTS["local"], replace(SMALL, heads=9, alpha=50.0), (1, 10, 12), 3)
    looks = looks_of(network, torch.randn(2, 1, 10, 12))
    centres = [layer.centres()[1].numpy() for layer in network.attentions()]
    path = {"layer": 2, "steps": [0, 50], "log_alpha": [[0.0] * 9, [1.0] * 9], "tau": [[[0, 0]] * 9, [[1, 2]] * 9]}
    local = {"seeds": [0], "seconds": [1.0], "accuracy": [[0.5, 0.75]], "looks": {"seed": 0, **looks, "path": path}}
    summary = {"commands": ["c"], "held": "test", "variants": {"local": local, "resnet18": {**local, "looks": None}}}
    (image,) = plots.maps(summary, "local").axes[0].images
    shown = np.asarray(np.ma.filled(np.ma.asarray(image.get_array()), np.nan))
    assert shown.shape == (2 * 6 - 1, 9 * 7 - 1)
    assert np.isnan(shown[:, 6]).all()
    for layer, head in ((0, 0), (1, 5)):  # sharp: only the token at which the head looks from query (2, 3) is dark
        tile = shown[6 * layer : 6 * layer + 5, 7 * head : 7 * head + 6]
        assert np.argwhere(tile > 0.5).tolist() == [
            [n + t for n, t in zip((2, 3), centres[layer][head].round(), strict=True)]
        ]
    first: Any = plots.centres(summary, "local").axes[0]
    np.testing.assert_allclose(np.array(first.collections[0].get_offsets())[:, ::-1], centres[0], atol=1e-3)
    outside = [np.exp(-50.0 * circle.get_radius() ** 2) for circle in first.patches[:2]]  # at α = 50
    assert outside == pytest.approx([1 / 2, 1 / 10], rel=1e-3)
    plane, sharpness = plots.paths(summary, "local").axes
    assert np.asarray(plane.lines[1].get_xydata()).tolist() == [[0, 0], [2, 1]]
    assert sharpness.lines[0].get_ydata() == pytest.approx(np.exp([0, 1]))
    lines = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in plots.accuracy(summary).axes[0].lines}
    assert [*lines.values()] == [[50, 75]] * 2
    assert "ResNet-18" in lines


def test_the_command_trains_measures_draws_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("examples.learned.command.digits", pictures)
    words = f"--variants covariance resnet18 --seeds 0 1 --out {tmp_path} --epochs 1 --layers 2 --heads 4 --width 8"
    assert main([*words.split(), "--jobs", "1", "--batch", "30"]) == 0
    first = capsys.readouterr().out
    assert "| quadratic, learned Σ and τ (non-isotropic) |" in first
    assert f"`python -m examples.learned {words}" in first
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == first.removesuffix("\n")
    drawn = {"accuracy.svg", "seconds.svg", "centres-covariance.svg", "maps-covariance.svg"}
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == drawn | {"table.md", "summary.json"}
    result = tmp_path / "covariance" / "seed-1" / RESULT
    written = result.stat().st_mtime_ns
    assert main([*words.split(), "--jobs", "1", "--batch", "30", "--no-plots"]) == 0
    assert capsys.readouterr().out == first
    assert result.stat().st_mtime_ns == written


def test_a_preset_takes_what_the_user_gives():
    preset = changed(PRESETS["paper"], epochs=3, heads=16, width=None)
    assert (preset.epochs, preset.shape.heads, preset.shape.width, preset.rate) == (3, 16, 400, 0.1)
