"""The distance of attention layers from convolutions: against least squares, on convolutions, and on layers without a grid."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.learned.network import AttentionNet
from examples.learned.results import nulls, ruler, table
from examples.learned.results.maps import maps_of
from examples.learned.results.nulls import Gaussians, gaussian_attention
from examples.learned.results.shifts import Shifts
from examples.learned.results.substitution import accuracy, accuracy_after, explained_variance
from examples.learned.variants import VARIANTS, Shape, positions_of

NAME = ["quadratic", 0]
SHAPE = Shape(layers=2, heads=9, width=9, intermediate=8, dropout=0.1, key_dim=0, alpha=40.0, resnet=2)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nulls, "DRAWS", 49)


def network(variant: str, side: int = 20, **shape: float) -> AttentionNet:
    torch.manual_seed(0)
    return AttentionNet(VARIANTS[variant], replace(SHAPE, **shape), (1, side, side), 3)


def least_squares(p: np.ndarray, w: np.ndarray, grid: tuple[int, int], size: int | None) -> float:
    """The same distance with the map written out entry by entry, and a column for each weight of the kernel."""
    places = [(row, column) for row in range(grid[0]) for column in range(grid[1])]
    a = np.einsum("hoi,hcd->oicd", p, w)
    reach = size // 2 if size else max(grid)
    shifts = sorted({(i[0] - o[0], i[1] - o[1]) for o in places for i in places})
    columns = []
    for shift in shifts:
        if max(map(abs, shift)) <= reach:
            columns.append([[(i[0] - o[0], i[1] - o[1]) == shift for i in places] for o in places])
    design = np.array(columns, dtype=float).reshape(len(columns), -1).T
    rows = a.reshape(len(design), -1)
    left = rows - design @ np.linalg.lstsq(design, rows, rcond=None)[0]
    return float(np.linalg.norm(left) / np.linalg.norm(rows))


@given(st.tuples(st.integers(1, 4), st.integers(1, 4)), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_distances_are_those_of_least_squares(grid: tuple[int, int], heads: int, width: int, seed: int):
    random, tokens = np.random.default_rng(seed), grid[0] * grid[1]
    p, w = random.dirichlet(np.ones(tokens), (heads, tokens)), random.standard_normal((heads, width, 2))
    expected = [least_squares(p, w, grid, size) for size in ruler.SIZES]
    np.testing.assert_allclose(ruler.by_size(p, w, grid), expected, atol=1e-7)


@pytest.mark.parametrize(("variant", "everywhere"), [("from-conv", True), ("local", False)])
def test_a_convolution_is_one_from_its_own_size_on(variant: str, everywhere: bool):
    """A local start has its taps on the image, and at the border reads the edge instead of zeros."""
    net = network(variant)
    for row in ruler.measured(net, net, torch.randn(3, 1, 20, 20), NAME):
        assert row["by_size" if everywhere else "middle"][1:] == pytest.approx([0] * 5, abs=1e-5)
        assert row["anywhere"] == pytest.approx(0, abs=1e-5)
        assert row["anywhere_sharp"] < 0.2  # sharp heads are taps wherever they are, but for centres between two tokens
        assert row["anywhere_orders"] > 0.8
        assert (row["distinct"], row["near"], row["moved"], row["log_alpha_moved"]) == (9, 1, 0, 0)
        assert min(row["by_size"][0], row["null"][1]) > 0.9
        assert row["position"] == pytest.approx(1)
        assert row["equivariance"] < 1e-5


@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_the_best_taps_anywhere_are_the_best_of_all_sets(taps: int, seed: int):
    random, grid = np.random.default_rng(seed), (2, 3)
    p, w = random.dirichlet(np.ones(6), (2, 6)), random.standard_normal((2, 2, 2))
    shifts = Shifts(p, w, grid)
    every = [shifts._distance(shifts.explained[list(kept)]) for kept in combinations(range(len(shifts.shifts)), taps)]
    assert shifts.distance_anywhere(taps) == pytest.approx(min(every))


@pytest.mark.parametrize("variant", ["quadratic", "covariance", "local-padded", "conv3", "conv9"])
def test_gaussian_attention_is_the_layers_own_without_its_padding_tokens(variant: str):
    net = network(variant, alpha=1.0)
    random = np.random.default_rng(0)
    with torch.no_grad():
        for p in (p for layer in net.attentions() for p in positions_of(layer)):
            change = torch.from_numpy(random.uniform(-0.3, 0.3, p.shape))
            p.add_(change.tril() if p.dim() == 3 else change)
    (p, *_) = maps_of(net, torch.randn(1, 1, 20, 20))
    layer = net.attentions()[0]
    heads = Gaussians.of(layer)
    assert heads is not None
    np.testing.assert_allclose(gaussian_attention(heads, net.grid, layer.geometry.pads), p[0], atol=1e-6)
    assert (p[0].sum(2).min() < 0.9) == any(map(any, layer.geometry.pads))


def test_heads_without_centres_have_no_null():
    assert Gaussians.of(network("relative").attentions()[0]) is None
    net = network("relative")
    assert "anywhere_sharp" not in ruler.measured(net, net, torch.randn(2, 1, 20, 20), NAME)[0]


@pytest.mark.parametrize("variant", ["quadratic", "covariance", "local-padded"])
def test_what_sharpening_alone_gives_is_told_from_what_moving_gives(variant: str):
    """Heads that are sharper where they started have that distance; those that moved have another."""
    before, sharper, moved = (network(variant, alpha=1.0) for _ in range(3))
    with torch.no_grad():
        for net in (sharper, moved):
            for layer in net.attentions():
                sharpness, tau = positions_of(layer)
                sharpness.add_(torch.eye(2) if sharpness.dim() == 3 else 1)
                if net is moved:
                    tau.add_(1.4 * torch.randn(tau.shape))
    x = torch.randn(2, 1, 20, 20)
    for row in ruler.measured(before, before, x, NAME):
        assert row["anywhere_first_centres"] == pytest.approx(row["anywhere"], abs=1e-6)
        assert 0.9 < row["anywhere_sharp_nearer"] + row["anywhere_sharp_further"] < 1.1
        assert 0 < row["anywhere_sharp_deviation"] < 0.2
    both = zip(*(ruler.measured(net, before, x, NAME) for net in (before, sharper, moved)), strict=True)
    for alone, row, other in both:
        assert row["anywhere_first_centres"] == pytest.approx(row["anywhere"], abs=1e-6)
        assert row["anywhere"] < alone["anywhere"]
        assert other["anywhere_first_centres"] == pytest.approx(row["anywhere"], abs=1e-6)
        assert abs(other["anywhere"] - row["anywhere"]) > 1e-4


def test_centres_drawn_as_the_null_is_are_nearer_than_it_as_often_as_chance_has_it():
    """And on the lattice they are nearer than nearly all draws; layers of other names have other draws."""
    shares, means = [], []
    for seed in range(12):
        torch.manual_seed(seed)
        for number, layer in enumerate(AttentionNet(VARIANTS["quadratic"], SHAPE, (1, 20, 20), 3).attentions()):
            tau = layer.centres()[1].detach().double().numpy()
            forms = 9.0 * np.eye(2)[None].repeat(len(tau), 0)
            there, near = Gaussians(forms, tau), Gaussians(forms, tau.round().clip(-3, 3))
            row, best = (
                ruler.anywhere_of_centres(layer, heads, there, (10, 10), ["quadratic", seed, number])
                for heads in (there, near)
            )
            assert best["anywhere_sharp_nearer"] < 0.05 < 0.95 < best["anywhere_sharp_further"]
            shares.append(row["anywhere_sharp_nearer"])
            means.append(row["anywhere_sharp"])
    assert 0.3 < np.mean(shares) < 0.7
    assert len({*means}) == len(means)


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=5))
def test_chances_are_pooled_as_fisher_does(chances: list[float]):
    """Beside the share of 40,000 products of uniform numbers that are as small."""
    products = np.random.default_rng(0).random((40_000, len(chances))).prod(1)
    assert nulls.pooled(chances) == pytest.approx(float((products <= np.prod(chances)).mean()), abs=0.02)


def test_a_convolution_in_the_place_of_attention_has_no_null():
    """Its heads are one-hot, and taps wherever they look."""
    net = network("conv3")
    for row in ruler.measured(net, net, torch.randn(2, 1, 20, 20), NAME):
        assert row["anywhere"] == pytest.approx(0, abs=1e-6)
        assert "anywhere_sharp" not in row
        assert row["sharp"] == row["sharp_near"] == row["heads"] == 9


@pytest.mark.parametrize("variant", ["from-conv", "conv3"])
def test_a_convolution_is_its_own_substitute(variant: str):
    net, x, labels = network(variant), torch.randn(40, 1, 20, 20), torch.arange(40) % 3
    assert all(row[1] == pytest.approx(1, abs=1e-6) for row in explained_variance(net, x))
    alone = accuracy(net, x, labels)
    assert all(row[1:] == [alone] * 4 for row in accuracy_after(net, x, labels, x[:2]))


def test_the_share_of_position_is_that_of_the_variance():
    random = np.random.default_rng(0)
    fixed, moved = random.standard_normal((2, 1, 3, 4, 4))
    p = 0.25 + np.concatenate([0.3 * fixed + 0.4 * moved, 0.3 * fixed - 0.4 * moved])
    share = 0.09 * np.square(fixed).sum() / (0.09 * np.square(fixed).sum() + 0.16 * np.square(moved).sum())
    assert ruler.position_share(p) == pytest.approx(share)
    assert ruler.position_share(np.full((2, 3, 4, 4), 0.25)) == 1


def test_equivariance_is_lost_with_positions_of_the_image_alone():
    errors = {name: max(ruler.equivariance(network(name), torch.randn(3, 1, 20, 20))) for name in ("local", "absolute")}
    assert errors["local"] < 1e-5
    assert errors["absolute"] > 0.01


def test_intervals_are_those_of_the_bootstrap():
    assert table.interval([0.5]) == "0.50"
    assert table.interval([0.2, 0.2, 0.2]) == "0.20 [0.20, 0.20]"
    assert table.interval([0.0, 0.5, 1.0]) == "0.50 [0.00, 1.00]"
    many = np.random.default_rng(0).standard_normal(400)
    text = table.interval(list(many))
    least, most = map(float, text.partition("[")[2][:-1].split(","))
    assert (most - least) / 2 == pytest.approx(1.96 * many.std() / 20, abs=0.01)
