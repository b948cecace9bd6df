"""The verified checker accepts every correct layer, rejects every planted fault, and agrees with our checker.

``python -m verify coq build`` builds the program; without it these tests are skipped, or fail under COQ_TESTS=required.
"""

import subprocess
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from construct import MHSA, conv_to_mhsa
from construct.encoding import encodings
from construct.encoding.encodings import shifts_are_distinct
from construct.heads import tap_shifts
from construct.tokens import TokenGrid
from construct.weights import MHSAWeights
from fault_table import ALL, Fault, convolution_and_inputs
from faults_code import FAULTS
from truths import permuted, with_content_heads
from verified import Asked, pair_of, proved
from verify.argument.certification import certify
from verify.checker import StepFails, parts_of
from verify.coq.verified import export
from verify.experiment.sweep import exact_layers
from verify.experiment.sweep.exact_layers import exactly_differ
from verify.experiment.sweep.faults import Inapplicable, with_heads
from verify.recheck.exact import NoCentre, centre_of
from verify.recheck.layer_pair import LayerPair
from verify.recheck.stored_layers import TENSORS
from verify.recheck.strict_input import Rejected
from verify.strategies import DTYPES, convolutions, least_size

STORED = [name for name, fault in FAULTS.items() if not fault.in_code or name.startswith(("builder: ", "encoding: v"))]
"""Faults that change stored numbers; the others change how a layer runs, which no checker of numbers can see."""


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked()


def grid_of(conv: Any) -> tuple[int, ...]:
    return tuple(n + 2 for n in least_size(conv))


def run(asked: Asked, folder: Path, text: str) -> str:
    """What the program prints for a text."""
    (folder / "text").write_text(text)
    return subprocess.run([asked.program, folder / "text"], capture_output=True, text=True, check=False).stdout.strip()


def answers_of(asked: Asked, folder: Path, pair: LayerPair, questions: list[str]) -> list[bool]:
    """The answer to each question, at least one of which is no."""
    verdict, *answers = run(asked, folder, asked.text(pair, questions)).split()
    assert verdict == "rejected"
    return [answer == "true" for answer in answers]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_a_right_layer_is_accepted_with_the_bound_that_ours_computes(name: str, dtype: torch.dtype, asked: Asked):
    conv = convolution_and_inputs(name, 0, integers=False)[0].to(dtype)
    layer = conv_to_mhsa(conv)
    pair = pair_of(conv, layer, grid_of(conv))
    answer = asked.answer(pair)
    assert proved(pair)
    assert answer.accepted, answer
    rejected = asked.answer(pair, export.floats(-149, 24, 1.0, 2.0**-40))
    assert not rejected.accepted  # the floating-point bound is really checked
    layer = permuted(layer, torch.randperm(layer.heads).tolist())
    for tensor, factor in ((layer.w_val, 4), (layer.w_out, 1 / 4), (layer.w_key_pos, -0.5), (layer.v, -2)):
        tensor.data *= factor
    assert asked.answer(pair_of(conv, layer, grid_of(conv))).accepted


def test_heads_that_carry_nothing_may_attend_by_content(asked: Asked):
    conv, _ = convolution_and_inputs("2-D", 0, integers=False)
    silent, loud = (with_content_heads(conv_to_mhsa(conv), w_out=w_out) for w_out in (0.0, 2.0**-149))
    assert asked.answer(pair_of(conv, silent, grid_of(conv))).accepted
    assert not asked.answer(pair_of(conv, loud, grid_of(conv))).accepted


def faulty(fault: Fault, conv: Any, turn: int) -> tuple[MHSA, LayerPair]:
    """A layer with the fault, and the pair that a checker would read."""
    if fault.in_code:
        with pytest.MonkeyPatch.context() as patch:
            fault.plant(patch)
            layer = conv_to_mhsa(conv)
    else:
        layer = fault.plant(conv, conv_to_mhsa(conv), np.random.default_rng(turn))
    return layer, pair_of(conv, layer, grid_of(conv))


@pytest.mark.parametrize("name", STORED)
def test_a_planted_fault_is_rejected(name: str, asked: Asked):
    """On the first geometry that admits it; on earlier ones it is never accepted if it changes the limit."""
    fault, rejected = FAULTS[name], 0
    for turn, geometry in enumerate(ALL):
        conv, _ = convolution_and_inputs(geometry, 0, integers=False)
        try:
            layer, pair = faulty(fault, conv, turn)
        except (Inapplicable, ValueError, IndexError):  # the fault does not apply, or no checker would read the pair
            continue
        accepted = asked.answer(pair).accepted
        assert not (accepted and exactly_differ(conv, layer, grid_of(conv))), geometry
        rejected += not accepted
        if rejected:
            break
    assert rejected


@pytest.mark.parametrize(
    ("emin", "precision", "least"), [(-149, 24, 104), (-1074, 53, 746), (-24, 11, 18), (-133, 8, 93)]
)
def test_heads_are_sharp_from_the_threshold_of_the_format_on(emin: int, precision: int, least: int, asked: Asked):
    """The mode `same` concerns the limit; for a soft head, `sharp` and a bound in floats are what is false."""
    conv = nn.Conv1d(1, 1, 3)
    for alpha, expected in ((least, True), (np.nextafter(least, 0), False), (2.0, False)):
        pair = pair_of(conv.double(), conv_to_mhsa(conv.double(), alpha=float(alpha)), (5,))
        assert asked.answer(pair, export.SAME).accepted
        assert asked.answer(pair, export.sharp(emin, precision)).accepted == expected
    assert not asked.answer(pair, export.floats(emin, precision, 1.0, 1.0)).accepted


@pytest.mark.parametrize("name", ["2-D", "1-D", "transposed", "grouped"])
def test_a_bound_one_ulp_too_small_is_rejected(name: str, asked: Asked):
    """One tap is off by 2^−20: over the reals the difference is that times B plus the leak at α = 1024, which no float holds."""
    conv, _ = convolution_and_inputs(name, 0, integers=True)
    layer = conv_to_mhsa(conv)
    faulty_tap = layer.w_val if (layer.w_val != 0).sum() >= (layer.w_out != 0).sum() else layer.w_out
    faulty_tap.data.view(-1)[0] += 2.0**-20
    pair = pair_of(conv, layer, grid_of(conv))
    for bound in (1.0, 3.0):
        most = float(bound * max(gaps(conv, layer)))
        assert asked.answer(pair, export.within(bound, float(np.nextafter(most, np.inf)))).accepted
        assert not asked.answer(pair, export.within(bound, most)).accepted  # the leak is missing
        assert not asked.answer(pair, export.within(bound, float(np.nextafter(most, 0)))).accepted


def gaps(conv: Any, layer: MHSA) -> list[Fraction]:
    """Σ|W_val W_out − W| over heads and input channels, for each output channel, with head h at tap h."""
    right = conv_to_mhsa(conv)
    product = (layer.w_val.double() @ layer.w_out.double() - right.w_val.double() @ right.w_out.double()).abs()
    return [Fraction(x) for x in product.sum(dim=(0, 2)).flatten().tolist()]


def shares(conv: Any, layer: MHSA, bound: float, identity: bool = False) -> list[tuple[Fraction, Fraction, Fraction]]:
    """For each output channel what the float32 bounds of RoundingSame.v (``same_figure``) are made of: the rounding of the
    convolution, of the layer head by head, and of the layer with W_val W_out first, which is exact if one is the identity.
    """
    w_val, w_out, weight, bias = (
        np.abs(exact_layers._fractions(x.detach().double().numpy()))
        for x in (layer.w_val, layer.w_out, conv.weight, layer.b_out)
    )
    kept = w_val.any(axis=(1, 2, 3)) & w_out.any(axis=(1, 2, 3))
    heads, d_in, head_dim = int(kept.sum()), *w_val.shape[2:]
    outward = w_out[kept].sum(axis=(0, 2)).reshape(-1)
    through = (w_val[kept].sum(axis=2)[..., None] * w_out[kept]).sum(axis=(0, 2)).reshape(-1)
    kernel = weight.reshape(*weight.shape[:2], -1).sum(axis=2).reshape(conv.groups, -1, weight.shape[1])
    kernel = kernel.sum(axis=1 if conv.transposed else 2).reshape(-1)
    u, half_eta, size = Fraction(1, 2**24), Fraction(1, 2**150), Fraction(bound)

    def dot(n: int, sizes: Any, of: Any = 1) -> Any:
        return n * u * sizes + n * half_eta * (1 + n * u) * of

    first = dot(d_in, through * size, outward)
    products = dot(0 if identity else head_dim, through * size, heads * d_in * size)
    by_head = first + dot(heads * head_dim + 1, bias + through * size + first)
    weights_first = products + dot(heads * d_in + 1, bias + through * size + products)
    convolved = dot(1 + int(np.prod(conv.kernel_size)) * d_in, bias + kernel * size)
    return list(zip(convolved, by_head, weights_first, strict=True))


@pytest.mark.parametrize("name", ALL)
def test_a_bound_in_floats_one_ulp_too_small_is_rejected(name: str, asked: Asked):
    """A bound is accepted from the largest channel's rounding on, in every order, also for heads with dense products."""
    conv, _ = convolution_and_inputs(name, 0, integers=True)
    layer = conv_to_mhsa(conv)
    for dense in (False, True):
        if dense:
            rng = np.random.default_rng(0)
            for tensor in (layer.w_val, layer.w_out):
                tensor.data = torch.from_numpy(rng.integers(-4, 5, tensor.shape) / 2).to(tensor)
            taps = (layer.w_val @ layer.w_out).detach()
            taps = taps.flip(0).permute(1, 2, 3, 0) if conv.transposed else taps.permute(1, 3, 2, 0)
            conv.weight.data = taps.reshape(conv.weight.shape)
        pair = pair_of(conv, layer, grid_of(conv))
        least = max(theirs + max(ours) for theirs, *ours in shares(conv, layer, 3.0))
        above = float(least) if Fraction(float(least)) >= least else float(np.nextafter(float(least), np.inf))
        assert asked.answer(pair, export.floats(-149, 24, 3.0, above)).accepted
        assert not asked.answer(pair, export.floats(-149, 24, 3.0, float(np.nextafter(above, 0)))).accepted


def test_heads_that_cancel_at_one_shift_are_accepted(asked: Asked):
    """Their products are a hundred times the taps; the bound counts them only for the layer, as ours does."""
    conv, _ = convolution_and_inputs("2-D", 0, integers=True)
    layer = conv_to_mhsa(conv)
    order = [*range(layer.heads), 0, 0]
    w_val = layer.w_val.detach()[order].clone()
    w_val[-2:] = 100
    w_val[-1] *= -1
    pair = pair_of(conv, with_heads(layer, order, w_val=w_val), grid_of(conv))
    assert len(pair.a["v"]) == layer.heads + 2
    assert asked.answer(pair).accepted


@pytest.mark.parametrize(
    "name", ["values of two heads swapped", "a tap one ulp off", "a bias one ulp off", "one head soft"]
)
def test_no_bound_in_floats_covers_another_function(name: str, asked: Asked):
    conv, _ = convolution_and_inputs("2-D", 0, integers=False)
    layer = FAULTS[name].plant(conv, conv_to_mhsa(conv), np.random.default_rng(0))
    for kind in (2, 5):  # a soft head is no matter of a sum of shifted tokens: `sharp` rejects it
        accepted = asked.answer(pair_of(conv, layer, grid_of(conv)), export.floats(-149, 24, 1.0, 1e30, kind)).accepted
        assert accepted == (kind == 5 and name == "one head soft")


def test_a_large_layer_gets_its_bound_in_floats(asked: Asked):
    conv = nn.Conv2d(128, 128, 3).requires_grad_(False)
    answer = asked.answer(pair_of(conv, conv_to_mhsa(conv), (8, 8)))
    assert answer.accepted
    assert "in float32 a difference of at most" in answer.sentence


def test_floats_covers_the_default_execution_which_multiplies_w_val_and_w_out_first(asked: Asked):
    """Products of 0.4 of the smallest number round to 0, and are then missed, by more than any evaluation head by head loses."""
    conv = nn.Conv1d(1, 1, 1, bias=False).requires_grad_(False)
    conv.weight.data.fill_(2.0**-140)
    layer = conv_to_mhsa(conv, head_dim=4).requires_grad_(False)
    layer.w_val.data = torch.tensor([2.0**-70, *(n * 2.0**-77 for n in (13, 13, -26))]).view_as(layer.w_val)
    layer.w_out.data = torch.tensor([2.0**-70, *(2.0**-77,) * 3]).view_as(layer.w_out)
    bound = 2.0**126
    theirs, by_head, weights_first = map(float, shares(conv, layer, bound)[0])
    x = torch.full((1, 1, 3), bound)
    differs = (layer(x) - conv(x)).abs().max().item()
    assert theirs + by_head < differs <= theirs + weights_first
    layer.execution = "dense"
    assert (layer(x) - conv(x)).abs().max() <= theirs + by_head
    pair = pair_of(conv, layer, (3,))
    assert not asked.answer(pair, export.floats(-149, 24, bound, differs)).accepted
    assert asked.answer(pair, export.floats(-149, 24, bound, (theirs + weights_first) * (1 + 1e-9))).accepted
    ours = parts_of(replace(pair, stated=pair.stated._replace(input_bound=bound)))[0]["bound"]
    for certified in (certify(conv, layer, grid=(3,), input_bound=bound).bound, ours):
        assert theirs + weights_first <= certified.max()


FACTORS = {"built": None, "dense": (3.0, -6, 1), "subnormal": (2.0**126, -80, -70)}
"""For each kind of layer the bound on the input, and the exponents of its weights."""


@given(
    st.sampled_from(ALL),
    st.integers(0, 2**32 - 1),
    st.sampled_from(sorted(FACTORS)),
    st.booleans(),
    st.sampled_from([0, 0.25, -0.44]),
)
def test_the_default_execution_keeps_the_bound_of_its_order(name: str, seed: int, factors: str, recorded: bool, offset):
    """On random layers, against their exact values; as built, one factor is the identity, and only one sum rounds.  Heads
    off the lattice by ``offset`` are one-hot, too.
    """
    conv, _ = convolution_and_inputs(name, seed % 997, integers=False)
    rng, size = np.random.default_rng(seed), (conv.in_channels, *(n + 1 for n in least_size(conv)))
    layer, bound = conv_to_mhsa(conv), 3.0
    if FACTORS[factors]:
        layer = conv_to_mhsa(conv, head_dim=int(rng.integers(1, 5)))
        bound, least, most = FACTORS[factors]
        for tensor in (layer.w_val, layer.w_out):
            weights = np.ldexp(rng.normal(size=tensor.shape), rng.integers(least, most, tensor.shape))
            tensor.data = torch.from_numpy(weights).to(tensor)
        layer.b_out.data *= factors == "dense"
    layer.v.data[:, -1] += 2048 * offset
    x = torch.from_numpy(bound * rng.choice([-1, 1, 2.0**-24 - 1, 1 - 2.0**-24], size)).float()
    exact = exact_layers.attention(layer, x.numpy())
    computed = layer.requires_grad_(recorded)(x[None])[0].detach().double().numpy()
    for channel, (_, _, most) in enumerate(shares(conv, layer, bound, identity=factors == "built")):
        assert (abs(exact_layers._fractions(computed[channel]) - exact[channel]) <= most).all()


@pytest.mark.parametrize("alpha", [4.0, 8.0, 20.0])
@pytest.mark.parametrize(("encoding", "neighbours"), [("quadratic", 4), ("parabola", 2)])
def test_soft_heads_are_accepted_within_their_leak_and_not_below(
    encoding: str, neighbours: int, alpha: float, asked: Asked
):
    conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
    layer = conv_to_mhsa(conv, alpha=alpha, encoding=encoding)
    sums = conv.weight.detach().double().abs().sum(dim=(1, 2, 3)).max().item()
    most = 2 * neighbours * np.exp(-alpha) * sums
    pair = pair_of(conv, layer, (5, 5), within=1.0)
    assert asked.answer(pair, export.within(1.0, most * (1 + 1e-9))).accepted
    assert not asked.answer(pair, export.within(1.0, most * (1 - 1e-9))).accepted


@pytest.mark.parametrize("change", ["between two taps", "beyond the kernel", "by content", "nowhere"])
def test_a_head_that_looks_at_no_tap_counts_with_all_that_it_carries(change: str, asked: Asked):
    """Its tap is missing, and it may read any average of tokens: twice B·Σ|W| of the tap, whose two input channels add up."""
    conv = nn.Conv2d(2, 3, 3, padding=2, dilation=2).double()
    layer = conv_to_mhsa(conv)
    vectors = {"between two taps": [-1024.0, 2048.0, 0.0], "beyond the kernel": [-1024.0, 40960.0, 0.0]}
    with torch.no_grad():
        if change == "by content":
            layer.w_qry[4, 0, 0] = layer.w_key[4, 0, 0] = 1.0
        else:
            layer.v[4] = torch.tensor(vectors.get(change, [1024.0, 0.0, 0.0]))
    missing = 2 * conv.weight.detach()[:, :, 1, 1].abs().sum(dim=1).max().item()
    pair = pair_of(conv, layer, (6, 6))
    assert asked.answer(pair, export.within(1.0, missing * (1 + 1e-9))).accepted
    assert not asked.answer(pair, export.within(1.0, missing * (1 - 1e-9))).accepted
    assert not asked.answer(pair, export.SAME).accepted
    assert not asked.answer(pair, export.sharp(-149, 24)).accepted
    with torch.no_grad():
        x = torch.rand(4, 2, 6, 6, dtype=torch.float64) * 2 - 1
        assert (layer(x) - conv(x)).abs().max() <= missing + 1e-9


@pytest.mark.parametrize("name", ["1-D", "2-D", "transposed", "3-D"])
def test_a_shift_that_is_not_whole_costs_sharpness(name: str, asked: Asked):
    """If τ is off by f, the head looks at the nearest shift with sharpness α(1 − 2f)."""
    conv, _ = convolution_and_inputs(name, 0, integers=False)
    for f, sharp in ((0.25, True), (-0.44, True), (0.46, False), (0.5, False)):
        layer = conv_to_mhsa(conv)
        layer.v.data[1, -1] += 2 * 1024.0 * f
        pair = pair_of(conv, layer, grid_of(conv))
        assert asked.answer(pair, export.SAME).accepted == (f < 0.5)
        assert asked.answer(pair, export.sharp(-149, 24)).accepted == sharp
        assert proved(pair) == sharp
        assert asked.answer(pair).accepted == sharp
        # all orders for integer shifts alone; the default one for others, too, and not below its rounding
        assert not asked.answer(pair, export.floats(-149, 24, 1.0, 1.0)).accepted
        assert asked.answer(pair, export.floats(-149, 24, 1.0, 1.0, kind=5)).accepted == (f < 0.5)
        assert not asked.answer(pair, export.floats(-149, 24, 1.0, 2.0**-40, kind=5)).accepted
        assert ("in float32 a difference" in asked.answer(pair).sentence) == sharp


@pytest.mark.parametrize("name", ALL)
def test_a_parabola_is_accepted_up_to_the_size_that_its_radix_carries(
    name: str, asked: Asked, monkeypatch: pytest.MonkeyPatch
):
    """Both checkers draw the line at the same size, where the layer itself does."""
    conv, _ = convolution_and_inputs(name, 0, integers=True)
    layer, grid = conv_to_mhsa(conv, encoding="parabola"), grid_of(conv)
    assert asked.answer(pair_of(conv, layer, grid)).sentence.count(f" on inputs up to {grid}") == 3
    side = 2 * max(abs(x) for shift in tap_shifts(layer.geometry) for x in shift) + 7
    radix = tuple(side**axis for axis in reversed(range(len(grid))))
    monkeypatch.setattr(encodings, "balanced_radix", lambda geometry, alpha: radix)
    layer, wrong = (conv_to_mhsa(conv, encoding="parabola") for _ in range(2))
    wrong.b_out.data += 1
    carried: list[bool] = []
    for more in range(14):
        grid = tuple(n + more for n in least_size(conv))
        pair = pair_of(conv, layer, grid)
        carried.append(shifts_are_distinct(radix, TokenGrid.of(layer.geometry, grid).box))
        assert asked.answer(pair).accepted == proved(pair) == carried[-1]
        assert asked.answer(pair, export.within(1.0, 1e9)).accepted == carried[-1]
        assert not asked.answer(pair, export.floats(-149, 24, 1.0, 1.0)).accepted  # speaks of quadratic scores
        question = export.refuted(grid, (0,) * (1 + len(grid)), {})
        assert asked.answer(pair_of(conv, wrong, grid), question).accepted == carried[-1]
    assert carried[0]
    assert all(carried) == (len(grid) == 1)  # in one dimension, a number is a shift


@pytest.mark.parametrize("radix", [(7, 0), (0, 1), (-7, 1), (6, 1), (1, 7), (7, 2)], ids=str)
def test_a_radix_that_numbers_no_box_is_rejected(radix: tuple[int, int], asked: Asked):
    """At a size for which (7, 1) is just large enough."""
    conv = nn.Conv2d(1, 1, 3, padding=1).requires_grad_(False)
    layer = conv_to_mhsa(conv, encoding="parabola").requires_grad_(False)
    layer.v[:, 1] = torch.tensor([2048.0 * (7 * i + j) for i in (-1, 0, 1) for j in (-1, 0, 1)])
    weights = MHSAWeights(**{name: getattr(layer, name).detach() for name in TENSORS})
    for numbers in ((7, 1), radix):
        pair = pair_of(conv, MHSA(layer.geometry, weights, radix=numbers), (3, 3))
        assert asked.answer(pair).accepted == proved(pair) == (numbers == (7, 1))


@pytest.mark.parametrize(("encoding", "alpha"), [("parabola", 1024.0), ("quadratic", 2.0)])
def test_sizes_without_outputs_are_accepted_of_no_layer(encoding: str, alpha: float, asked: Asked):
    """Up to such a size, every difference is as small as one likes."""
    conv = nn.Conv2d(1, 1, 3)
    within = None if encoding == "parabola" else 1e9
    pair = pair_of(conv, conv_to_mhsa(conv, alpha=alpha, encoding=encoding), (5, 5), within=within)
    assert asked.answer(pair).accepted
    small = replace(pair, stated=pair.stated._replace(grid=(2, 2)))
    assert "no input of size (2, 2)" in asked.answer(small).sentence
    assert not asked.answer(small).accepted


@pytest.mark.parametrize("name", ALL)
def test_an_output_is_refuted_exactly_where_it_differs(name: str, asked: Asked, tmp_path: Path):
    """On an image of integers, compared with exact evaluation of both layers; one entry of W_out is off in every head."""
    conv, _ = convolution_and_inputs(name, 0, integers=True)
    layer, rng = conv_to_mhsa(conv), np.random.default_rng(0)
    pair = pair_of(conv, layer, grid_of(conv))
    layer.w_out.data[:, 0, 0, 0] += 0.5
    wrong = pair_of(conv, layer, grid_of(conv))
    x = rng.integers(-3, 4, (conv.in_channels, *grid_of(conv))).astype(object)
    expected, attended = exact_layers.convolution(conv, x), exact_layers.attention(layer, x)
    pixels: dict[Any, Fraction] = {index: Fraction(int(value), 4) for index, value in np.ndenumerate(x) if value}
    places = [tuple(rng.integers(0, n) for n in expected.shape[1:]) for _ in range(6)]
    outputs = [(channel, *place) for place in places for channel in (0, expected.shape[0] - 1)]
    questions = [export.refuted(grid_of(conv), output, pixels) for output in outputs]
    differs = [bool(expected[output] != attended[output]) for output in outputs]
    assert 0 < sum(differs) < len(differs)
    assert answers_of(asked, tmp_path, wrong, [export.SAME, *questions]) == [False, *differs]
    assert answers_of(asked, tmp_path, pair, questions) == [False] * len(questions)


def test_no_refutation_of_what_is_no_output(asked: Asked, tmp_path: Path):
    conv, _ = convolution_and_inputs("reflect", 0, integers=True)
    layer = conv_to_mhsa(conv)
    layer.b_out.data += 1  # differs everywhere
    pair = pair_of(conv, layer, (7, 7))
    inside, rows = (0, 0, 0), conv(torch.zeros(1, conv.in_channels, 7, 7)).shape[2]
    wrong = [(0, rows, 0), (0, 0, -1), (conv.out_channels, 0, 0)]
    asked_of = [export.refuted((7, 7), output, {}) for output in (inside, *wrong)]
    sizes_to_refuse = ((1, 7), (7,), (7, 7, 7))
    asked_of += [export.refuted(grid, (0, *(0 for _ in grid)), {}) for grid in sizes_to_refuse]
    assert answers_of(asked, tmp_path, pair, asked_of) == [True] + [False] * 6


@pytest.mark.deep
def test_every_counterexample_of_ours_is_confirmed(asked: Asked):
    """For faults that leave both layers' fields equal and every head at a kernel shift."""
    confirmed: list[str] = []
    for name in STORED:
        for turn, geometry in enumerate(ALL):
            conv, _ = convolution_and_inputs(geometry, 0, integers=False)
            try:
                layer, pair = faulty(FAULTS[name], conv, turn)
                ours = certify(conv, layer, grid=grid_of(conv)).counterexample
            except (Inapplicable, ValueError, IndexError, TypeError):  # TypeError: no other padding than "same"
                continue
            if ours is None or ours.shapes is not None or pair.conv != pair.mhsa:
                continue
            if elsewhere(pair)[1]:
                continue
            question = export.refuted(grid_of(conv), ours.output, ours.entries)
            assert asked.answer(pair, question).accepted, (name, geometry)
            confirmed.append(name)
    print(Counter(confirmed))
    assert len({*confirmed}) > 20


def test_only_a_whole_text_is_read(asked: Asked, tmp_path):
    conv = nn.Conv1d(1, 1, 2)
    text = asked.text(pair_of(conv, conv_to_mhsa(conv), (5,)), [export.SAME])
    numbers = text.split()
    assert run(asked, tmp_path, text) == "accepted 31 46"
    cut, odd = " ".join(numbers[:-1]), text.replace(" ", " - ", 1)
    for damaged in ("", "x", text + "0", cut, odd, text.replace("1", "1.0", 1)):
        assert run(asked, tmp_path, damaged) == "unreadable", damaged[:50]
    assert run(asked, tmp_path, " ".join(["31", "46", "0", *numbers[4:]])) == "unreadable"  # no question, no answer


@pytest.mark.parametrize("spread", [0, 40, 300])
def test_every_number_is_written_exactly(spread: int):
    rng = np.random.default_rng(spread)
    x = np.concatenate([rng.normal(size=50) * 2.0 ** rng.integers(-spread, spread + 1, 50), [0.0, -0.0]])
    x = np.concatenate([x, [5e-324, 1.7e308]]) if spread == 300 else x
    exponent, *entries = map(int, "".join(export._tensor(x)).split())
    assert [Fraction(m) * Fraction(2) ** exponent for m in entries] == [Fraction(y) for y in x.tolist()]


def test_what_is_not_finite_and_thirds_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        export._integers(np.array([1.0, np.inf]))
    with pytest.raises(ValueError, match="must be an integer times a power of two"):
        export.refuted((3,), (0, 0), {(0, 1): Fraction(1, 3)})
    text = export.refuted((3,), (1, 0), {(0, 2): Fraction(-3, 8), (0, 1): Fraction(2)})
    assert text == "4 1 3 0 1 -3 2 0 2 -3 0 1 16"


def elsewhere(pair: LayerPair) -> tuple[bool, bool]:
    """Whether some carrying head looks off the integer lattice, and whether some looks at a shift without a tap."""
    shifts, off_lattice, off_taps = {*pair.conv.shifts()}, False, False
    for v, w_key_pos in zip(pair.a["v"][pair.carrying], pair.a["w_key_pos"][pair.carrying], strict=True):
        try:
            centre = centre_of(v, w_key_pos, pair.radix, [8] * len(pair.conv.kernel))
        except NoCentre:
            continue
        off_lattice |= any(centre.offset)
        off_taps |= centre.shift not in shifts
    return off_lattice, off_taps


def agreement(examples: int, fault: str | None = None) -> Counter:
    """Count the agreeing verdicts of both checkers on random layers, all with this fault, or three in four with any fault."""
    asked, counts = Asked(), Counter()
    faults = {name: fault.options for name, fault in FAULTS.items() if not fault.in_code}
    names = [*[""] * (len(faults) // 3), *faults] if fault is None else [fault]
    cases = st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), convolutions(**faults.get(name, {}))))

    unhealthy = [HealthCheck.too_slow, HealthCheck.filter_too_much]

    @settings(max_examples=examples, phases=[Phase.generate], suppress_health_check=unhealthy)
    @given(
        cases,
        st.integers(0, 2**16),
        st.sampled_from(["quadratic", "quadratic", "parabola"]),
        st.sampled_from(["same", "same", "twice the bound", "less than the taps"]),
    )
    def search(case: tuple[str, Any], seed: int, encoding: str, claim: str):
        name, conv = case[0], case[1].requires_grad_(False)
        rng = np.random.default_rng(seed)
        try:
            layer = conv_to_mhsa(conv, encoding=encoding)
            layer = FAULTS[name].plant(conv, layer, rng) if name else layer
            pair = pair_of(conv, layer.requires_grad_(False), grid_of(conv))
            if claim != "same":
                parts, _ = parts_of(pair)
                share, scale = ("bound", 2.0) if claim == "twice the bound" else ("taps", 0.99)
                within = scale * float(parts[share].max(initial=0.0))
                if not within:
                    raise Inapplicable  # ours also counts rounding, while the question is about the reals
                pair = pair_of(conv, layer, grid_of(conv), within=within)
        except (Inapplicable, StepFails, OverflowError, Rejected):
            counts["inapplicable, or no pair for either"] += 1
            return
        off_lattice = elsewhere(pair)[0]
        if claim == "twice the bound" and off_lattice and pair.radix is not None:
            counts["a difference within a bound of a parabola's heads off the lattice"] += 1
            return
        ours, theirs = proved(pair), asked.answer(pair)
        assert ours == theirs.accepted, (name, conv, claim, theirs)
        counts["proved" if ours else "rejected"] += 1
        counts[claim] += 1
        counts["parabola"] += pair.radix is not None
        counts["off the lattice"] += off_lattice

    search()
    return counts


@pytest.mark.parametrize(
    ("examples", "fault", "least"),
    [
        (120, None, {"proved": 5, "rejected": 15, "parabola": 5}),
        pytest.param(3300, None, {"proved": 300}, marks=pytest.mark.deep),
        pytest.param(100, "softly off the lattice", {"off the lattice": 20}, marks=pytest.mark.deep),
    ],
    ids=["quick", "long", "off the lattice"],
)
def test_both_checkers_agree(examples: int, fault: str | None, least: dict[str, int]):
    counts = agreement(examples, fault)
    print(counts)
    assert examples < 1000 or counts["proved"] + counts["rejected"] >= 2000
    assert all(counts[word] >= count for word, count in least.items())
