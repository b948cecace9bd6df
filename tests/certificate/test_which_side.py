"""If the two differ by more than rounding explains, the exact value decides which is wrong; only the attention can be refuted."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from broken import break_execution
from construct import conv_to_mhsa
from construct.attention import EXECUTIONS
from verify.argument.certification import certify
from verify.argument.verdicts import certify_layer, combined
from verify.experiment.sweep import exact_layers
from verify.rounding.elements import convolution_bound, convolution_share
from verify.samples.reference import deviation
from verify.samples.sampling import check_call, check_outputs
from verify.strategies import convolutions, sizes_for
from verify.verdict import Verdict

EXAMPLES = settings().max_examples
TINY = 2.0**-126


@pytest.fixture
def flushing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch's convolutions treat subnormal numbers as zero, as some processors' bfloat16 instructions do."""

    def flushed(tensor: Tensor) -> Tensor:
        return torch.where(tensor.abs() < TINY, 0.0, tensor)

    for name in ("conv1d", "conv2d"):
        right = getattr(functional, name)

        def wrong(x: Tensor, weight: Tensor, *others: Any, right: Any = right) -> Tensor:
            return flushed(right(flushed(x), flushed(weight), *others))

        monkeypatch.setattr(functional, name, wrong)


def small(scale: float) -> tuple[Any, Any]:
    conv = nn.Conv2d(2, 3, 3, padding=1, bias=False)
    conv.weight.data *= scale
    return conv, conv_to_mhsa(conv)


@pytest.mark.usefixtures("flushing")
@pytest.mark.parametrize(("scale", "bound"), [(1e-40, 1.0), (1.0, 1e-40), (1e-40, 1e30), (1e-20, 1e-19)])
def test_a_convolution_that_flushes_refutes_nothing(scale: float, bound: float):
    """Nor is anything proved: the failed assumption is named."""
    conv, layer = small(scale)
    certificate = certify(conv, layer, grid=(6, 5), input_bound=bound)
    assert certificate.verdict.name == "UNDECIDED"
    assert certificate.overrun is None
    sentence = certificate.verdict.sentence
    assert sentence.startswith("step 6 (runs)")
    assert "torch's own convolution does not compute its definition" in sentence
    assert "subnormal numbers are flushed to zero" in sentence
    x = bound * (2 * torch.rand(1, 2, 6, 5) - 1)
    check = check_call(conv, layer, x, "samples")
    assert check.verdict.name == "UNDECIDED"
    assert check.convolution_off
    assert "torch's own convolution does not compute its definition" in check.verdict.sentence
    assert certify_layer(conv, layer, check, bound)[1].name == "UNDECIDED"


@pytest.mark.usefixtures("flushing")
@pytest.mark.parametrize("name", EXECUTIONS)
def test_nor_does_it_excuse_an_execution(name: str, monkeypatch: pytest.MonkeyPatch):
    """One output of one execution is wrong by less than torch's convolution is elsewhere."""
    conv, layer = small(1e-40)

    def wrong(run: Any, *args: Any) -> Tensor:
        output = run(*args).clone()
        output[:, 1, 2, 2] *= 1.25
        return output

    break_execution(monkeypatch, name, wrong)
    certificate = certify(conv, layer, grid=(6, 5))
    assert certificate.verdict.name == "REFUTED"
    assert certificate.verdict.sentence.startswith(f"{name}, on inputs")
    over = certificate.overrun
    assert over is not None
    assert (over.execution, over.output) == (name, (1, 2, 2))
    assert exact_layers.convolution(conv, over.input)[over.output] == over.convolution
    assert over.attention == pytest.approx(1.25 * float(over.convolution), rel=1e-3)


@pytest.mark.nasty(43)
@settings(max_examples=EXAMPLES // 2)
@given(convolutions(), st.data())
def test_the_side_that_is_off_is_the_one_that_was_moved(conv: Any, data: st.DataObject):
    """One of the exact outputs is moved by more than is allowed, up, down or to NaN."""
    grid = data.draw(sizes_for(conv, tokens=30))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, conv.in_channels, *grid, generator=generator, dtype=torch.float64).to(conv.weight.dtype)
    numbers = x.double().numpy()
    exact = np.stack([exact_layers.convolution(conv, image).astype(float) for image in numbers])
    share = convolution_share(conv, x)
    allowed = 2 * share + 1e-300
    place = tuple(data.draw(st.integers(0, n - 1)) for n in exact.shape)
    moved = exact.copy()
    step = data.draw(st.sampled_from([1.5, -1.5, 100.0, math.nan, math.inf]))
    moved[place] += step * (allowed[place] + 1e-12 * abs(exact[place]) + 1e-290)
    ours, theirs = (moved, exact) if data.draw(st.booleans()) else (exact, moved)
    over = ~(np.abs(ours - theirs) <= allowed)
    assert over.sum() == 1
    judged = deviation(conv, x, theirs, ours, allowed, share, over)
    assert judged.index == place
    assert judged.refutes == (ours is moved)
    assert judged.convolution_off == (theirs is moved)
    assert judged.exact == exact_layers.convolution(conv, numbers[place[0]])[place[1:]]
    assert "\n" not in judged.sentence


@settings(max_examples=EXAMPLES // 4)
@given(convolutions(), st.data())
def test_the_share_of_the_convolution_is_enough_and_no_more_than_its_part(conv: Any, data: st.DataObject):
    """Its share is elementwise at most a certificate's bound, and no run of torch's convolution exceeds it."""
    grid = data.draw(sizes_for(conv, tokens=30))
    x = torch.randn(2, conv.in_channels, *grid, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (x.clamp(-1, 1) * torch.randint(0, 2, (*x.shape[:1], 1, *grid))).to(conv.weight.dtype)
    share = convolution_share(conv, x)
    assert (share <= convolution_bound(conv, x) * (1 + 1e-12)).all()
    bound = certify(conv, conv_to_mhsa(conv), grid=grid).bound
    assert (share <= bound.reshape(-1, *(1,) * len(grid))).all()
    with torch.no_grad():
        theirs = conv(x).double().numpy()
    exact = np.stack([exact_layers.convolution(conv, image) for image in x.double().numpy()])
    assert (np.abs(theirs - exact.astype(float)) <= share + 1e-15 * np.abs(theirs)).all()


@pytest.mark.parametrize(
    ("certified", "within", "samples", "difference", "off", "both"),
    [
        ("PROVED", None, "CHECKED", 1.0, False, "PROVED"),
        ("PROVED", None, "UNDECIDED", 1.5, False, "REFUTED"),
        ("PROVED", None, "UNDECIDED", math.nan, False, "REFUTED"),
        ("PROVED", None, "UNDECIDED", 1.5, True, "UNDECIDED"),  # torch's own convolution is at fault
        ("PROVED", None, "REFUTED", 1.5, True, "REFUTED"),  # the attention is at fault as well
        ("PROVED", None, "REFUTED", 0.5, False, "REFUTED"),  # where less is allowed than at the largest
        ("PROVED", 1.0, "REFUTED", 1.5, True, "UNDECIDED"),  # REFUTED for "same sums", which is not claimed
        ("PROVED", 1.0, "REFUTED", 1.5, False, "REFUTED"),
        ("PROVED", 1.0, "REFUTED", 0.5, False, "PROVED"),
        ("UNDECIDED", None, "CHECKED", 0.5, False, "UNDECIDED"),
        ("UNDECIDED", None, "REFUTED", 0.5, False, "REFUTED"),
        ("UNDECIDED", 1.0, "REFUTED", 0.5, False, "UNDECIDED"),
        ("UNDECIDED", 1.0, "REFUTED", 1.5, False, "REFUTED"),
        ("UNDECIDED", 1.0, "REFUTED", 1.5, True, "UNDECIDED"),
        ("UNDECIDED", 1.0, "REFUTED", math.nan, False, "REFUTED"),
        ("REFUTED", None, "CHECKED", 0.5, False, "REFUTED"),
    ],
)
def test_the_verdict_on_a_layer_with_a_certificate_and_samples(
    certified: Any, within: float | None, samples: Any, difference: float, off: bool, both: str
):
    """With a bound of 1, on inputs that the certificate covers."""
    conv = nn.Conv1d(1, 2, 3)
    certificate = certify(conv, conv_to_mhsa(conv), grid=(6,), input_bound=1.0)
    check = check_call(conv, conv_to_mhsa(conv), torch.ones(1, 1, 6), "samples")
    assert (certificate.verdict.name, check.verdict.name) == ("PROVED", "CHECKED")
    certificate = replace(certificate, verdict=Verdict(certified, ""), within=within, bound=np.ones(2))
    discrepancy = replace(check.discrepancy, max_abs=difference, worst=(0, 1, 2))
    channels = np.array([0.0, difference])
    check = replace(
        check, verdict=Verdict(samples, ""), discrepancy=discrepancy, by_channel=channels, convolution_off=off
    )
    assert combined(certificate, check).name == both
    for beyond in (replace(check, grid=(7,)), replace(check, largest_input=1.5)):
        expected = "PROVED" if certified == "PROVED" else both
        assert combined(certificate, beyond).name == expected


@pytest.mark.parametrize("within", [None, 1e3])
def test_a_channel_of_small_numbers_is_not_hidden_by_the_rounding_of_another(
    within: float | None, monkeypatch: pytest.MonkeyPatch
):
    """The greatest difference is in the first channel, and within its bound; the second is wrong, on one image alone."""
    conv = nn.Conv2d(8, 2, 3, padding=1, bias=False)
    conv.weight.data *= torch.tensor([1e6, 1e-3]).view(2, 1, 1, 1)

    def wrong_on_one_image(run: Any, layer: Any, x: torch.Tensor, grid: Any) -> torch.Tensor:
        y = run(layer, x, grid)
        return y + torch.tensor([0.0, 1e-3]).view(1, 2, 1, 1) if len(x) == 1 else y

    break_execution(monkeypatch, "auto", wrong_on_one_image)
    layer = conv_to_mhsa(conv)
    check = check_call(conv, layer, torch.rand(1, 8, 6, 6, generator=torch.Generator().manual_seed(0)), "samples")
    certificate, verdict = certify_layer(conv, layer, check, within=within)
    assert certificate is not None
    assert certificate.verdict.name == "PROVED"
    assert check.discrepancy.max_abs <= certificate.bound[0]
    np.testing.assert_array_equal(check.by_channel <= certificate.bound, [True, False])
    assert check.by_channel.max() == check.discrepancy.max_abs
    assert verdict.name == "REFUTED"
    assert verdict.sentence.startswith("in output channel 1 the samples differ by 0.001")
    right = check_outputs(conv, layer, torch.ones(2, 8, 6, 6), torch.ones(2, 2, 6, 6), torch.ones(2, 2, 6, 6), "ones")
    assert combined(certificate, check.merged(right)) == combined(certificate, right.merged(check)) == verdict
