"""What is made of finished runs: the paper's figures, the page of a network, and the tables of docs/learned.md."""

import json
import re
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.learned.command import main
from examples.learned.data import BadInput
from examples.learned.network import AttentionNet
from examples.learned.results import figures, nulls, page, published, rows, sentences, table
from examples.learned.results.maps import attention_of, centres_of, followed
from examples.learned.results.measurements import RULER
from examples.learned.results.nulls import Gaussians, gaussian_attention
from examples.learned.results.stored import stored
from examples.learned.results.summary import gaussians, path_of
from examples.learned.training import CHECKPOINT, RESULT, Run
from examples.learned.variants import VARIANTS
from trainings import SMALL, ends_in_one_line, pictures, quiet, settings_of

SIZES = "--epochs 1 --layers 2 --heads 4 --width 8 --batch 30 --jobs 1 --no-plots".split()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of finished runs of a few variants."""
    folder = tmp_path_factory.mktemp("runs")
    variants = ["--variants", "quadratic", "covariance", "relative", "conv3", "from-conv", "--seeds", "0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("examples.learned.command.digits", pictures)
        patch.setattr("examples.learned.results.nulls.DRAWS", 9)
        assert main([*variants, "--out", str(folder), *SIZES]) == 0
    return folder


@pytest.fixture(autouse=True)
def noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise in place of the digits, and few draws of nulls."""
    monkeypatch.setattr("examples.learned.command.digits", pictures)
    monkeypatch.setattr("examples.learned.results.nulls.DRAWS", 9)


@given(st.integers(0, 2**32 - 1), st.floats(4, 50))
def test_the_profile_of_a_local_gaussian_follows_the_query(seed: int, alpha: float):
    tau = np.random.default_rng(seed).uniform(-1, 1, (3, 2))
    attention = gaussian_attention(Gaussians(alpha * np.eye(2)[None].repeat(3, 0), tau), (16, 12))
    follows, stays = followed(attention.reshape(3, -1, 16, 12))
    assert follows == pytest.approx(1, abs=0.01)
    assert stays < 0.4


def test_a_profile_that_does_not_depend_on_the_query_stays():
    profile = np.random.default_rng(0).dirichlet(np.ones(64))
    follows, stays = followed(np.broadcast_to(profile, (1, 64, 64)).reshape(1, 64, 8, 8))
    assert stays == pytest.approx(1)
    assert follows < 0.7


def test_an_ellipse_is_that_of_the_attention():
    network = AttentionNet(VARIANTS["covariance"], SMALL, (1, 60, 60), 3)
    layer = network.attentions()[0]
    with torch.no_grad():
        for name, p in layer.named_parameters():
            if "parametrizations.v" in name:
                p.mul_(0.5).add_(torch.full_like(p, 0.1).tril())  # wide, near the middle and not round
    looks = gaussians(layer)
    means, covariances = centres_of(attention_of(network, torch.zeros(1, 1, 60, 60))[0])
    np.testing.assert_allclose(means, looks["tau"], atol=0.05)
    np.testing.assert_allclose(covariances, looks["sigma"], atol=0.05)
    assert np.abs(looks["sigma"][:, 0, 1]).min() > 0.1


def test_the_path_of_the_centres_ends_where_training_did(runs: Path):
    run = stored(runs / "quadratic" / "seed-0", pictures())
    path = path_of(run)
    assert path is not None
    assert isinstance(run.network, AttentionNet)
    assert (path["steps"], path["layer"]) == ([0, 2], 2)
    alpha, tau = run.network.attentions()[1].centres()
    np.testing.assert_allclose(path["tau"][-1], tau, atol=1e-4)
    np.testing.assert_allclose(path["log_alpha"][-1], alpha.log(), atol=1e-4)
    assert np.abs(np.array(path["tau"][0]) - path["tau"][-1]).max() > 0


def test_the_figures_of_a_folder_are_drawn_and_the_others_named(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    assert figures.main([str(runs), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    drawn = {"accuracy", "centres", "paths", "centres_covariance", "maps_relative", "moved", "moved_paper"}
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.png" for name in drawn} | {figures.SUMMARY}
    assert "centres_16: not drawn, no finished run of quadratic-16\n" in printed
    assert "accuracy: drawn without local, relative-content, frozen, conv9, resnet18, of" in printed
    summary = json.loads((tmp_path / figures.SUMMARY).read_text(encoding="utf-8"))
    again, _ = figures.drawn(summary)
    assert {drawing.name for drawing in again} == drawn
    for drawing in again:
        assert drawing.draw(summary).axes


def test_a_finished_run_is_drawn_before_it_is_measured(runs: Path, tmp_path: Path):
    shutil.copytree(runs / "quadratic", tmp_path / "quadratic")
    (tmp_path / "quadratic" / "seed-0" / RESULT).unlink()
    Run(settings_of("local", shape=replace(SMALL, heads=9)), pictures(), tmp_path / "local" / "seed-3", every=3).save()
    summary = figures.summary_in(tmp_path, pictures())
    assert [*summary["variants"]] == ["quadratic"]
    assert summary["variants"]["quadratic"] == figures.summary_in(runs, pictures())["variants"]["quadratic"]


def test_a_run_measured_by_an_older_ruler_is_measured_again(runs: Path, tmp_path: Path):
    """And keeps what its result says of the training, and of convolutions in its layers' place."""
    shutil.copytree(runs / "quadratic", tmp_path / "quadratic")
    path = tmp_path / "quadratic" / "seed-0" / RESULT
    right = json.loads(path.read_text())
    layers = [{"explained": [0.5] * 5, "substituted": layer["substituted"]} for layer in right["layers"]]
    older = right | {"ruler": 2, "layers": layers, "ended": "then", "command": "theirs", "test_accuracy": 0.25}
    path.write_text(json.dumps(older))
    again = ["--variants", "quadratic", "--seeds", "0", "--out", str(tmp_path), *SIZES]
    assert main(again) == 0
    now = json.loads(path.read_text())
    layers = [layer | {"explained": [0.5] * 5} for layer in right["layers"]]
    assert now == right | {"ended": "then", "command": "theirs", "test_accuracy": 0.25, "layers": layers}
    written = path.stat().st_mtime_ns
    assert main(again) == 0
    assert path.stat().st_mtime_ns == written


def test_a_window_about_the_query_has_no_tokens_beyond_the_grid(runs: Path):
    summary = figures.summary_in(runs, pictures())
    (image,) = figures.plots.maps(summary, "relative", reach=3).axes[0].images
    shown = np.asarray(np.ma.filled(np.ma.asarray(image.get_array()), np.nan))[:7, :7]
    rows, columns = np.nonzero(np.isfinite(shown))
    # The grid is 2 × 3 and its middle query (1, 1): row 1 is row 3 of the window.
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (2, 3, 2, 4)
    assert np.nanmax(shown) == 1


def test_a_run_that_cannot_be_shown_is_told_in_a_line(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(BadInput, match=r"no such file \(give the folder of a run"):
        stored(tmp_path, pictures())
    with pytest.raises(BadInput, match="trained on other pictures than noise"):
        stored(runs / "quadratic" / "seed-0", replace(pictures(), digests={"a": "b"}))
    run = Run(settings_of("quadratic"), pictures(), tmp_path / "stopped", every=3)
    run.save()
    with pytest.raises(BadInput, match="after 0 of 2 epochs"):
        stored(tmp_path / "stopped", pictures())
    run.train(quiet)
    state = torch.load(tmp_path / "stopped" / CHECKPOINT, weights_only=True)
    torch.save(state | {"network": {}}, tmp_path / "stopped" / CHECKPOINT)
    with pytest.raises(BadInput, match="damaged: "):
        stored(tmp_path / "stopped", pictures())
    ends_in_one_line(lambda: figures.main([str(tmp_path)]), 2, f"error: {tmp_path}: no finished run", capsys)


def test_a_network_has_a_page_with_a_query_to_move(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "page.html"
    assert page.main([str(runs / "relative" / "seed-0"), "--layers", "2", "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert "learned relative embedding, seed 0, after training" in text
    assert "layer 2" in text
    assert "layer 1" not in text
    capsys.readouterr()
    for words, reason in (
        (["conv3/seed-0"], "conv3 has no attention to show"),
        (["from-conv/seed-0"], "its heads look at padding tokens too"),
        (["relative/seed-0", "--layers", "3"], "--layers has 3, and the network has the layers 1 to 2"),
    ):
        assert page.main([str(runs / words[0]), *words[1:], "--out", str(tmp_path / "none.html")]) == 2
        assert reason in capsys.readouterr().err


def test_the_page_in_the_docs_is_what_its_command_makes(tmp_path: Path):
    assert page.main(["--out", str(tmp_path / "page.html")]) == 0
    kept, made = (path.read_bytes() for path in (published.DOCS / "learned.html", tmp_path / "page.html"))
    assert len({re.sub(rb"with torch \S+|report [0-9a-f]{64}", b"", one) for one in (kept, made)}) == 1


def test_heads_on_the_page_look_where_the_trained_ones_looked():
    """The mean shift from the middle query is the one measured in the run, up to four decimals of α and τ."""
    variants = json.loads(published.DRAWN.read_text())["variants"]
    measured = [layer["mean"] for start in page.STARTS for layer in variants[start]["looks"]["layers"]]
    for (name, layer), mean in zip(page.learned_layers(), measured, strict=True):
        alpha, tau = (x.detach().double().numpy() for x in layer.centres())

        def mean_at(a: int, t: tuple[int, ...], alpha: np.ndarray = alpha, tau: np.ndarray = tau) -> np.ndarray:
            heads = Gaussians((alpha + 5e-5 * a)[:, None, None] * np.eye(2), tau + 5e-5 * np.array(t))
            return centres_of(gaussian_attention(heads, (16, 16)).reshape(len(tau), -1, 16, 16))[0]

        here = mean_at(0, (0, 0))
        corners = [mean_at(a, t) for a in (-1, 1) for t in product((-1, 1), repeat=2)]
        slack = np.abs(np.array(corners) - here).max(0) + 1e-4  # and its own four decimals, and float32
        assert (np.abs(here - mean) <= slack).all(), name


def test_the_tables_of_the_page_are_those_of_the_committed_results():
    pages = [path.read_text(encoding="utf-8") for path in published.PAGES]
    assert [published.with_blocks(page) for page in pages] == pages
    for name in published.blocks():
        assert sum(page.count(f"<!-- {name} -->") for page in pages) == 1, name


def test_what_claims_quote_is_that_of_the_committed_results():
    assert published.CLAIMED.read_text(encoding="utf-8") == published.quoted_by_claims()


def test_no_number_beside_the_tables_is_stale():
    """Every number with decimals is in a table that is made from results, but for the settings and an earlier conclusion."""
    number = re.compile(r"(?<![\d.,])\d+\.\d+")
    made = {*number.findall("\n".join(line for lines in published.blocks().values() for line in lines))}
    stale = []
    for path in published.PAGES:
        text = path.read_text(encoding="utf-8").partition("\n## Earlier runs\n")[0]
        text = re.sub(r"<!-- [\w-]+ -->.*?<!-- end -->", "", text, flags=re.DOTALL)
        stale += [(path.name, one) for one in number.findall(text) if one not in made | {"0.28", "1.8"}]
    assert stale == []


def test_the_answer_is_not_written_once_it_is_no_longer_so():
    """Where all runs are those of the local start, or have learned random labels, each conclusion fails in one of them."""
    cifar, sgd, shuffled = (published.committed(f"learned_cifar{how}") for how in ("", "_sgd", "_shuffled"))
    digits = {rate: published.committed(f"learned_digits_{rate}") for rate in rows.RATES}
    starts = sentences.starts_of(cifar, sgd, shuffled, digits)
    wrong = set()
    for name in ("local", "shuffled"):
        others = dict.fromkeys(starts, sentences.Layers(starts[name].runs[:2]))
        with pytest.raises(ValueError, match="the results no longer say: ") as error:
            sentences.answer(others)
        wrong |= {*str(error.value).partition(": ")[2].split("; ")}
    assert wrong == {*sentences.of_the_papers_start(starts), *sentences.of_controls(starts)}


def a_result(folder: Path, variant: str, seed: int, ruler: int = RULER) -> Path:
    """The path of a run's result."""
    path = folder / variant / f"seed-{seed}" / RESULT
    path.parent.mkdir(parents=True, exist_ok=True)
    result = dict.fromkeys(table.KEYS, 0) | {"layers": [{"anywhere": 0.123456789}], "settings": {}}
    path.write_text(json.dumps(result | {"variant": variant, "seed": seed, "ruler": ruler}), encoding="utf-8")
    return path


def test_committed_results_are_the_runs_in_few_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run that is collected later stands beside the others, or in place of itself."""
    monkeypatch.setattr(published, "FOLDER", tmp_path / "results")
    for variant, seed in (("local", 1), ("local", 0), ("quadratic", 2), ("frozen", 7)):
        a_result(tmp_path, variant, seed)

    def collected(folder: str, *words: str) -> list[tuple[str, list[int]]]:
        assert published.main(["collect", str(tmp_path / folder), "name", *words]) == 0
        return [(variant, [run["seed"] for run in runs]) for variant, runs in published.committed("name").items()]

    assert collected(".", "--seeds", "7") == [("frozen", [7])]
    assert collected("frozen") == [("frozen", [7])]
    assert collected("local") == [("local", [0, 1]), ("frozen", [7])]
    assert collected(".") == [("quadratic", [2]), ("local", [0, 1]), ("frozen", [7])]
    (run,) = published.committed("name")["frozen"]
    assert run["layers"] == [{"anywhere": 0.1235}]
    assert "settings" not in run
    published.commit("name", [run | {"ruler": RULER - 1}])
    assert published.main(["collect", str(tmp_path), "name"]) == 2


def test_figures_of_later_runs_stand_beside_the_others():
    first = {"commands": ["b"], "held": "test", "variants": {"local": 1, "conv3": 2}}
    both = figures.beside(first, {"commands": ["a"], "held": "test", "variants": {"quadratic": 3, "conv3": 4}})
    assert both["commands"] == ["a", "b"]
    assert [*both["variants"].items()] == [("quadratic", 3), ("local", 1), ("conv3", 4)]
    with pytest.raises(BadInput, match="on the test pictures, not the validation ones"):
        figures.beside(first, first | {"held": "validation"})


def test_what_cannot_be_collected_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    a_result(tmp_path / "a", "local", 0)
    twice, old = a_result(tmp_path / "b", "local", 0), a_result(tmp_path / "c", "local", 0, ruler=2)
    for folder, error in (
        ("a b", f"{twice}: a second run of local, seed 0"),
        ("c", f"{old}: measured by an older"),
        ("none", f"{tmp_path / 'none'}: no finished run"),
    ):
        words = ["collect", *(str(tmp_path / name) for name in folder.split()), "name"]
        ends_in_one_line(lambda words=words: published.main(words), 2, f"error: {error}", capsys)


@pytest.mark.parametrize(
    ("chances", "said"),
    [
        ([0.004], ("nearer", 0.004)),
        ([0.005], ("", 0.005)),
        ([0.1, 0.03, 0.01], ("nearer", 0.0019)),
        ([0.5, 0.5], ("", 0.597)),
        ([0.996], ("further", 0.004)),
    ],
)
def test_a_layer_is_called_nearer_if_chance_seldom_gives_any_of_six_a_label(
    chances: list[float], said: tuple[str, float]
):
    runs = [{"layers": [{"anywhere_sharp_nearer": p, "anywhere_sharp_further": 1 - p}] * 6} for p in chances]
    word, chance = nulls.verdict(runs, 0)
    assert (word, chance) == (said[0], pytest.approx(said[1], rel=0.05))


def test_the_rate_is_chosen_by_finished_runs_measured_or_not(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    run = Run(settings_of("quadratic", where=100.0), pictures(), tmp_path / "half" / "seed-3", every=3)
    run.save()
    assert published.main(["tuning", str(tmp_path / "half"), str(runs)]) == 0
    committed = published.committed("learned_tuning")
    assert {"quadratic", "covariance", "relative"} < committed.keys()
    (only,) = committed["quadratic"]
    (result,) = table.records(runs / "quadratic" / "seed-0" / RESULT, ())
    assert (only["rate"], only["seed"], only["epochs"]) == (25.0, 0, 1)
    assert [only["accuracy"], only["budget"]] == [pytest.approx(result[k], rel=1e-3) for k in ("accuracy", "budget")]
    run.train(quiet)
    assert published.main(["tuning", str(tmp_path / "half")]) == 0
    assert published.committed("learned_tuning")["quadratic"][0]["rate"] == 100
    ends_in_one_line(lambda: published.main(["tuning", str(tmp_path / "no")]), 2, f"error: {tmp_path / 'no'}: ", capsys)


def test_what_has_not_run_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(published, "DRAWN", tmp_path / "none.json")
    committed = published.committed
    monkeypatch.setattr(published, "committed", lambda name: committed(name) if "digits" in name else {})
    blocks = published.blocks()
    assert blocks["cifar"] == blocks["cifar-heads"] == published.NONE
    assert all("not run yet | not run yet" in line for line in blocks["tuning"][2:])
    assert "not drawn yet" in blocks["figures"][0]
    said = published.absent({"local": []}, ["local", "conv3"], ["the paper's SGD"])
    assert said == ["", "*Not run yet: a 3 × 3 convolution in the block; the paper's SGD.*"]
