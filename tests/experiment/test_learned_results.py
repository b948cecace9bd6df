"""What is made of finished runs: the paper's figures, the page of a network, and the tables of docs/learned.md."""

import json
import re
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.learned.command import main
from examples.learned.data import BadInput
from examples.learned.network import AttentionNet
from examples.learned.results import figures, page, published, rows, table
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
        assert main([*variants, "--out", str(folder), *SIZES]) == 0
    return folder


@pytest.fixture(autouse=True)
def noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise in place of the digits."""
    monkeypatch.setattr("examples.learned.command.digits", pictures)


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
        alpha, tau = (x.detach() for x in layer.centres())

        def mean_at(alpha: torch.Tensor, tau: torch.Tensor) -> np.ndarray:
            delta = torch.cartesian_prod(*[torch.arange(-8.0, 8.0).double()] * 2)  # from token (8, 8) of 16 × 16
            away = (delta[None] - tau[:, None]).square().sum(-1)
            return (torch.softmax(-alpha[:, None] * away, dim=1) @ delta).numpy()

        shown = layer.attention_probabilities(torch.zeros(1, 1, 16, 16)).detach()[0].unflatten(2, (16, 16)).numpy()
        here = centres_of(shown)[0]
        corners = [
            mean_at(alpha + 5e-5 * a, tau + 5e-5 * torch.tensor(t))
            for a in (-1, 1)
            for t in product((-1.0, 1.0), repeat=2)
        ]
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


def test_what_the_answer_says_of_cifar_is_so():
    """Each of its sentences, from the committed results; the short answer has no number that is not among them."""
    short, answer = (" ".join(path.read_text(encoding="utf-8").split()) for path in published.PAGES)
    short, answer = short.partition("## How it")[0], answer.partition("## How it")[0].partition("## The answer")[2]
    number = re.compile(r"\d+\.\d+|\d+ of [a-z]* ?\d+")
    runs = published.committed("learned_cifar")
    learned = [variant for variant in runs if runs[variant][0]["layers"] and not VARIANTS[variant].kernel]
    learned = [variant for variant in learned if not VARIANTS[variant].frozen]

    def of(variant: str, layer: int, name: str, when: str = "layers") -> list[Any]:
        return [run[when][layer - 1][name] for run in runs[variant]]

    def span(numbers: list[float]) -> str:
        return f"{min(numbers):.2f} to {max(numbers):.2f}"

    def said(numbers: list[float]) -> str:
        return ", ".join(f"{number:.2f}" for number in numbers[:-1]) + f" and {numbers[-1]:.2f}"

    def verdicts(of: list[dict[str, Any]]) -> list[str]:
        (line,) = rows.compared(rows.rows({25: {"quadratic": of}}))[2:]
        return ["".join(re.findall("[a-z]{2,}", cell)) for cell in line.split(" | ")[3:9]]

    def total(variants: list[str], name: str) -> int:
        layers = [layer for variant in variants for run in runs[variant] for layer in run["layers"]]
        return sum(layer.get(name, 0) for layer in layers)

    def near(variant: str, when: str = "layers") -> int:
        return sum(round(share * heads) for share, heads in zip(of(variant, 1, "near", when), (9, 9, 9), strict=True))

    assert f"{near('quadratic')} of its 27 heads end near an integer shift" in answer
    assert f"where {near('quadratic', 'untrained')} began so and chance is 7." in answer
    assert f"It ends at {said(of('quadratic', 1, 'anywhere'))} from nine taps" in answer
    assert f"random heads are at {said(of('quadratic', 1, 'anywhere_sharp'))}." in answer
    assert [round(share, 3) for share in of("quadratic", 1, "anywhere_sharp_nearer")] == [0.213, 0.003, 0.01]
    assert verdicts(runs["quadratic"]) == ["nearer", "", "", "", "further", "further"]
    others = [variant for variant in ("covariance", "quadratic-16", "quadratic-cutmix") if variant in runs]
    ends, shares = ([of(variant, 1, name)[0] for variant in others] for name in ("anywhere", "anywhere_sharp_nearer"))
    assert f"end at {span(ends)}, where {100 * min(shares):.0f} to {100 * max(shares):.0f} %" in answer
    assert not [variant for variant in others if "nearer" in verdicts(runs[variant])]
    heads = [[round(of(v, 1, "near", w)[0] * of(v, 1, "heads")[0]) for w in ("layers", "untrained")] for v in others]
    (six, five), (nine, sixteens), (three, mixed_first) = heads
    settled = f"of their heads {six} of 9, {nine} of 16 and {three} of 9 are near a shift"
    assert f"{settled} (before {five}, {sixteens} and {mixed_first})." in answer.replace("Of their", "of their")
    moving = ["quadratic", "covariance", "quadratic-16", "quadratic-cutmix"]  # from random centres
    for variants in (["quadratic"], moving, ["quadratic-cutmix"]):
        assert f"{total(variants, 'sharp_near')} of {total(variants, 'sharp')}" in answer
    fifth, sixth = (of("quadratic", layer, "anywhere") for layer in (5, 6))
    assert f"they end at {span(fifth)} and at {span(sixth)}, further than" in answer
    fifth, sixth = (of("quadratic", layer, "anywhere_sharp") for layer in (5, 6))
    assert f"(random heads: {span(fifth)} and {span(sixth)})" in answer
    middle = [sizes[1] for sizes in of("quadratic", 1, "middle")]
    assert f"({span(middle)} from any centred 3 × 3 one)" in answer
    deep = [layer for run in runs["quadratic"] for layer in run["layers"][2:]]
    settled = (sum(layer["sharp"] for layer in deep), sum(round(9 * layer["near"]) for layer in deep))
    assert "{} of their 108 heads become sharp, and {} end near a shift (chance 27)".format(*settled) in answer
    everywhere = [sizes[-1] for sizes in of("quadratic", 1, "by_size")]
    assert f"Over all outputs the first layer is {said(everywhere)} from any convolution" in answer
    local = [of("local", layer, "anywhere") for layer in range(1, 7)]
    assert f"layer 1 ends at {span(local[0])}, with {near('local')} of 27 heads" in answer
    second = "({:.2f}, {:.2f}; in the third {:.2f})".format(*local[1])
    assert f"Layer 2 does so in two seeds {second}" in answer
    deeper = [end for ends in local[2:] for end in ends]
    assert f"Layers 3 to 6 end at {min(deeper):.2f} to {max(deeper):.2f}" in answer
    for variant in ("from-conv", "local-scaled", "local-padded"):
        assert "nearer" not in verdicts(runs[variant])
    scores = {variant: [100 * run["test_accuracy"] for run in each] for variant, each in runs.items()}
    kinds = [variant for variant in learned if variant not in ("quadratic-cutmix", "relative-content")]
    assert {variant: len(each[0]["accuracy"]) for variant, each in runs.items() if len(each[0]["accuracy"]) != 6} == {
        "relative-content": 4
    }
    assert len(kinds) == 8
    first = [scores[variant][0] for variant in kinds]
    apart = (scores[variant][0] for variant in ("quadratic-cutmix", "relative-content"))
    outside = "(with CutMix {:.2f} %, with content after four epochs {:.2f} %)".format(*apart)
    assert f"{span(first)} % there {outside}" in answer
    frozen, both, alone, conv3 = (scores[variant] for variant in ("frozen", "quadratic", "frozen-centres", "conv3"))
    assert f"frozen reach {frozen[0]:.2f} and {frozen[1]:.2f} % (seeds 0 and 1)" in answer
    assert (
        f"learn α alone {alone[0]:.2f} and {alone[1]:.2f} %, and those that learn both {both[0]:.2f} and {both[1]:.2f} %"
        in answer
    )
    gained = [after - before for after, before in zip(both[:2], frozen, strict=True)]
    assert [round(points) for points in gained] == [6, 2]
    assert both[0] - alone[0] > 2
    assert abs(both[1] - alone[1]) < 0.05
    sharpened, null = (said(of("frozen-centres", 1, name)) for name in ("anywhere", "anywhere_sharp"))
    assert f"layer 1 ends at {sharpened} from nine taps, random heads at {null} (" in answer
    shown = f"{total(['frozen-centres'], 'sharp_near')} of {total(['frozen-centres'], 'sharp')} sharp heads stand near shifts"
    assert shown in answer
    assert verdicts(runs["frozen-centres"]) == [""] * 6
    assert f"in the block {conv3[0]:.2f} and {conv3[1]:.2f} %" in answer
    for variant in ("quadratic", "local"):
        assert f"from {min(scores[variant]):.2f} to {max(scores[variant]):.2f} %" in answer
    assert [variant for variant, each in runs.items() if len(each) == 3] == ["quadratic", "local"]
    (sgd,) = published.committed("learned_cifar_sgd")["quadratic"]
    assert f"(one seed, {100 * sgd['test_accuracy']:.2f} %)" in answer
    assert verdicts([sgd]) == [""] * 6
    mixed = published.committed("learned_cifar_shuffled")["quadratic"]
    worst, best = (100 * end(run["test_accuracy"] for run in mixed) for end in (min, max))
    assert f"({len(mixed)} seeds, {worst:.2f} to {best:.2f} %: nothing is learned)" in answer
    layers = [layer for run in mixed for layer in run["layers"]]
    sharp, beside = (sum(layer[name] for layer in layers) for name in ("sharp", "sharp_near"))
    assert f"{beside} of {sharp} sharp heads onto shifts, in all layers (of {9 * len(layers)} heads;" in answer
    assert beside == sharp
    assert {run["layers"][5]["distinct"] for run in mixed} == {2, 4}
    # the short answer's own sentences
    checked = [answer]

    def says(sentence: str) -> None:
        assert sentence in short
        checked.append(sentence)

    says(f"{sharp} of the {9 * len(layers)} heads become sharp")
    ends = [said([run["layers"][0][name] for run in mixed]) for name in ("anywhere", "anywhere_sharp")]
    says(f"The first layer ends at {ends[0]}, random heads at {ends[1]} (p = ")
    widths = [sum(of("quadratic", layer, "width")) / 3 for layer in (1, 5, 6)]
    first = sum(of("quadratic", 1, "width", "untrained")) / 3
    said_widths = f"within {widths[0]:.2f} tokens (root mean square) of their mean in the first layer, {widths[1]:.2f} in the fifth"
    says(f"{said_widths} and {widths[2]:.2f} in the sixth ({first:.2f} before)")
    before = said(of("frozen-centres", 1, "anywhere", "untrained"))
    says(f"it goes from {before} to {sharpened} (seeds 0 and 1), random heads are at {null}.")
    first_centres = said(of("quadratic", 1, "anywhere_first_centres"))
    says(f"the same α and W_h at the first centres are at {first_centres}, a rough")
    nulls = [of("local", layer, "anywhere_sharp") for layer in range(1, 7)]
    says(f"{span(deeper)} (random heads {span([end for ends in nulls[2:] for end in ends])})")
    began, square = ([sizes[1] for sizes in of("local", 1, "middle", when)] for when in ("untrained", "layers"))
    assert {f"{end:.2f}" for end in began} == {"0.15"}
    taps = f"as nine other taps ({span(square)} from any centred 3 × 3 kernel, where it began at 0.15)"
    assert taps in answer
    says(f"the first at {span(local[0])} ({span(nulls[0])}), {taps}")
    says(f"the second at {said(local[1])} ({said(nulls[1])})")
    starts = [of("local-scaled", 1, "anywhere", when)[0] for when in ("untrained", "layers")]
    scaled = of("local-scaled", 1, "anywhere_sharp")
    says("({:.2f} → {:.2f}; random heads {:.2f})".format(*starts, *scaled))
    chances = [f"{run['layers'][0]['anywhere_sharp_nearer']:.2g}" for run in mixed]
    says(f"(p = {chances[0]}, {chances[1]} and {chances[2]})")
    nulls = [of(variant, 1, "anywhere_sharp")[0] for variant in others]
    says(f"random heads at {span(nulls)}, and are not told apart")
    digits = published.committed("learned_digits_100")["quadratic"]
    after, before = (
        [sum(round(9 * run[when][layer]["near"]) for run in digits) for layer in range(4)]
        for when in ("layers", "untrained")
    )
    says("({}, {}, {} and {} of 90 at × 100, where {}, {}, {} and {} began so)".format(*after, *before))
    for rate in (1, 5, 25, 100):
        assert "nearer" not in verdicts(published.committed(f"learned_digits_{rate}")["quadratic"])
    assert all(of(variant, 1, "anywhere")[0] < 0.15 for variant in ("from-conv", "local-padded"))
    every = [layer["by_size"][-1] for run in runs["quadratic"] for layer in run["layers"]]
    untrained = [layer["by_size"][-1] for run in runs["quadratic"] for layer in run["untrained"]]
    says(f"all six end {min(every):.2f} or more from any convolution over all outputs (before: {span(untrained)};")
    away = [of("relative", layer, "reach")[0] for layer in range(1, 7)]
    assert (min(away), max(away)) == (away[0], away[5])
    says(f"(a mean key is {away[0]:.2f} tokens away, the least of the six) and furthest in the last ({away[5]:.2f})")
    reach = [sum(of("quadratic", layer, "reach")) / 3 for layer in range(1, 7)]
    says(
        f"(a mean key is {reach[4]:.2f} tokens away, {reach[0]:.2f} in the first layer); the sixth spreads alone ({reach[5]:.2f})"
    )
    for variant in ("covariance", "from-conv", "local-padded"):
        ends = [of(variant, layer, "reach")[0] for layer in (1, 5, 6)]
        assert min(ends[1:]) > 3 * ends[0]
    for layer in (1, 2):
        first, last = (of("local", layer, name) for name in ("anywhere_first_centres", "anywhere"))
        assert all(start < end for start, end in zip(first, last, strict=True))
    moved, frozen = (of(variant, 1, "anywhere")[:2] for variant in ("quadratic", "frozen-centres"))
    assert all(near < far for near, far in zip(moved, frozen, strict=True))
    assert max(layer["moved"] for layer in sgd["layers"]) < 0.7
    assert {*number.findall(short)} <= {*number.findall(" ".join(checked))}


def test_committed_results_are_the_runs_in_few_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(published, "FOLDER", tmp_path / "results")
    for variant, seed in (("local", 1), ("local", 0), ("quadratic", 2), ("frozen", 7)):
        path = tmp_path / variant / f"seed-{seed}" / RESULT
        path.parent.mkdir(parents=True)
        result = {key: 0 for key in table.KEYS} | {"layers": [{"anywhere": 0.123456789}], "settings": {}}
        result |= {"command": "c", "variant": variant, "seed": seed, "ruler": RULER}
        path.write_text(json.dumps(result), encoding="utf-8")
    assert published.main(["collect", str(tmp_path), "name"]) == 0
    assert published.main(["collect", str(tmp_path), "few", "--seeds", "7"]) == 0
    assert [*published.committed("few")] == ["frozen"]
    results = published.committed("name")
    assert {variant: [run["seed"] for run in runs] for variant, runs in results.items()} == {
        "quadratic": [2],
        "local": [0, 1],
        "frozen": [7],
    }
    assert results["local"][0]["layers"] == [{"anywhere": 0.1235}]
    assert "settings" not in results["local"][0]
    # a run that is collected later stands beside the others, or in place of itself
    assert published.main(["collect", str(tmp_path / "frozen"), "few"]) == 0
    assert published.main(["collect", str(tmp_path / "local"), "few"]) == 0
    assert {variant: len(runs) for variant, runs in published.committed("few").items()} == {"local": 2, "frozen": 1}
    older = [{**run, "ruler": RULER - 1} for run in published.committed("few")["local"]]
    published.commit("few", older)
    assert published.main(["collect", str(tmp_path / "frozen"), "few"]) == 2


def test_figures_of_later_runs_stand_beside_the_others():
    first = {"commands": ["b"], "held": "test", "variants": {"local": 1, "conv3": 2}}
    both = figures.beside(first, {"commands": ["a"], "held": "test", "variants": {"quadratic": 3, "conv3": 4}})
    assert both["commands"] == ["a", "b"]
    assert [*both["variants"].items()] == [("quadratic", 3), ("local", 1), ("conv3", 4)]
    with pytest.raises(BadInput, match="on the test pictures, not the validation ones"):
        figures.beside(first, first | {"held": "validation"})


def test_what_cannot_be_collected_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folders, result = (tmp_path, tmp_path / "b", tmp_path / "none"), dict.fromkeys(table.KEYS, 0)
    result |= {"variant": "local", "ruler": RULER}
    paths = [tmp_path / part / "local" / "seed-0" / RESULT for part in ("a", "b")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(result), encoding="utf-8")
    path = paths[-1]
    twice, old, none = (lambda place=place: published.main(["collect", str(place), "name"]) for place in folders)
    ends_in_one_line(twice, 2, f"error: {path}: a second run of local, seed 0", capsys)
    path.write_text(json.dumps(result | {"ruler": 2}), encoding="utf-8")
    ends_in_one_line(old, 2, f"error: {path}: measured by an older", capsys)
    ends_in_one_line(none, 2, f"error: {tmp_path / 'none'}: no finished run", capsys)


def run_of(
    seed: int, before: float, after: float, null: float | None = None, chance: float = 0.5, **more: Any
) -> dict[str, Any]:
    """A result of six like layers, nearer than all but ``chance`` of the draws of their null."""
    layer: dict[str, Any] = {"anywhere": after, "moved": 0.5, "log_alpha_moved": 0.25, "width": 3.0}
    first: dict[str, Any] = {"anywhere": before, "width": 2.0, "near": 1 / 3, "heads": 9}
    if null is not None:
        layer |= {"anywhere_sharp": null, "anywhere_sharp_deviation": 0.02, "anywhere_first_centres": null + 0.1}
        layer |= {"anywhere_sharp_nearer": chance, "anywhere_sharp_further": 1 - chance}
        layer |= {"near": 8 / 9, "heads": 9, "sharp": 5, "sharp_near": 4}
    result = dict(seed=seed, test_accuracy=0.5, budget=6.3, accuracy=[0.25, 0.5], parameters=10, seconds=1.0)
    return result | {"layers": [layer] * 6, "untrained": [first] * 6} | more


def test_a_row_pairs_before_with_after_and_has_the_displacement_and_the_null():
    results = {
        "quadratic": [run_of(0, 0.6, 0.2, 0.4), run_of(1, 0.6, 0.1, 0.2)],
        "relative": [run_of(0, 0.8, 0.3)],
        "frozen": [run_of(0, 0.6, 0.6, 0.4)],
        "local-padded": [run_of(0, 0.1, 0.2, 0.3)],
        "resnet18": [run_of(0, 0, 0, layers=[], untrained=[])],
    }
    shown = rows.rows({25: results})
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in rows.by_layer(shown)[2:]}
    assert (
        "| × 25 | 6.3 | 0.50, 0.25 | 0, 1 | 50.00 ± 0.00 | 0.60 → 0.15 (0.30 ± 0.02) |"
        in lines[VARIANTS["quadratic"].label]
    )
    assert "| 0.80 → 0.30 |" in lines[VARIANTS["relative"].label]
    assert "| – | – | – | 0 | 50.00 | 0.60 → 0.60 (0.40 ± 0.02) |" in lines[VARIANTS["frozen"].label]
    assert "| 0.10 → 0.20 (0.30 ± 0.02) |" in lines[VARIANTS["local-padded"].label]
    assert lines["ResNet-18"].endswith("| – | – | – | – | – | – |")
    assert len(rows.by_layer(rows.by_seed(shown))) == 2 + 6
    cells = {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1:3] for line in rows.looks(shown)}
    assert cells[VARIANTS["quadratic"].label] == ["0, 1", "–, 2.00 → 3.00, –"]
    assert VARIANTS["frozen"].label not in cells
    assert [line.split(" | ")[2] for line in rows.sharpening(shown)[2:]] == [
        "0.60 → 0.40 → 0.15",
        "0.10 → 0.40 → 0.20",
    ]


@pytest.mark.parametrize(
    ("chances", "said"),
    [
        ([0.004], "**nearer** (0.004)"),
        ([0.005], "0.005"),
        ([0.1, 0.03, 0.01], "**nearer** (0.002)"),
        ([0.5, 0.5], "0.6"),
        ([0.996], "further (0.004)"),
    ],
)
def test_a_layer_is_called_nearer_if_chance_seldom_gives_any_of_six_a_label(chances: list[float], said: str):
    runs = [run_of(seed, 0.6, 0.2, 0.4, chance) for seed, chance in enumerate(chances)]
    results = {"quadratic": runs, "relative": [run_of(0, 0.8, 0.3)]}
    (line,) = rows.compared(rows.rows({25: results}))[2:]
    assert line.endswith(f" | × 25 | {rows.seeds(runs)} |" + f" {said} |" * 6)


def test_heads_near_the_lattice_are_counted_over_seeds():
    results = {"quadratic": [run_of(0, 0.6, 0.2, 0.4), run_of(1, 0.6, 0.1, 0.4)], "frozen": [run_of(0, 0.6, 0.6, 0.4)]}
    (line,) = rows.lattice(rows.rows({25: results}))[2:]
    assert line.endswith("| × 25 | 0, 1 | 48 of 60 |" + " 6 → 16 of 18 |" * 6)


def test_intervals_are_of_every_variant():
    results = {"quadratic": [run_of(n, 0.6, 0.1 * n, test_accuracy=0.5 + n / 10) for n in range(3)]}
    text = "\n".join(rows.intervals(results))
    assert "0, 1, 2 | 60.00 [50.00, 70.00]" in text
    assert "0.60 → 0.10 [0.00, 0.20]" in text


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


def test_the_rate_that_was_best_on_validation_is_named():
    scores = {"quadratic": [0.3, 0.4, 0.75, 0.5], "local": [0.3, 0.4, 0.5, 0.625]}
    tuned = {
        variant: [
            {"rate": float(rate), "budget": 0.25 * rate, "accuracy": [0.1, score]}
            for rate, score in zip(rows.RATES, shares, strict=True)
        ]
        for variant, shares in scores.items()
    }
    lines = rows.tuning(tuned)
    assert lines[4] == "| × 25 | 6.2 | 75.00 | 50.00 |"
    assert lines[-1].startswith("Highest at × 25 (quadratic, learned α and τ (isotropic)) and × 100 (quadratic, local")
    del tuned["local"][0]
    assert rows.tuning(tuned)[2::3] == ["| × 1 | 0.25 | 30.00 | not run yet |", "| × 100 | 25 | 50.00 | 62.50 |"]


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
