"""For any α, a layer is judged by one rule: the same function if no head leaks, else a difference within the derived bound."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from broken import break_execution
from construct import conv_to_mhsa
from construct.attention import EXECUTIONS
from faults_code import FAULTS
from rechecked import Files
from runs import is_quick
from verify.argument.certification import certify
from verify.argument.runs import run_executions
from verify.argument.verdicts import certify_layer
from verify.samples.sampling import check_call
from verify.strategies import DTYPES, convolutions, sizes_for

ULPS = ["a tap one ulp off", "a bias one ulp off"]
ALPHAS = [1e-3, 0.5, 1.0, 16.0, 45.96, 46.0, 104.0, 110.0, 746.0, 1024.0]
GEOMETRIES = {
    "2-D": (lambda dtype: nn.Conv2d(2, 3, 3, padding=1, dtype=dtype), (6, 5)),
    "1-D, strided, circular": (
        *(lambda dtype: nn.Conv1d(2, 4, 4, stride=2, padding=2, padding_mode="circular", groups=2, dtype=dtype), (11,)),
    ),
    "3-D, transposed": (
        *(lambda dtype: nn.ConvTranspose3d(2, 1, 2, stride=2, output_padding=1, bias=False, dtype=dtype), (2, 3, 2)),
    ),
}


def judged(conv: Any, layer: Any, grid: tuple[int, ...], **claimed: Any) -> tuple[Any, Any]:
    """The certificate and the final verdict, on a sample of this size."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, conv.in_channels, *grid, generator=generator, dtype=torch.float64).clamp(-2, 2)
    return certify_layer(conv, layer, check_call(conv, layer, x.to(conv.weight.dtype), "x"), 2.0, **claimed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_sharpness_is_proved_and_rechecked(name: str, dtype: torch.dtype, tmp_path: Path):
    """The same function from the format's threshold on; below it, a difference within the stated bound."""
    make, grid = GEOMETRIES[name]
    conv = make(dtype)
    threshold = 745.5 if dtype == torch.float64 else 103.98
    layers = {f"at {alpha:g}".replace(".", "_"): conv_to_mhsa(conv, alpha=alpha) for alpha in ALPHAS}
    records = []
    for (path, layer), alpha in zip(layers.items(), ALPHAS, strict=True):
        certificate, verdict = judged(conv, layer, grid, leaking=True)
        assert verdict.name == "PROVED", (alpha, verdict)
        assert certificate.claim == ("same sums" if alpha > threshold else "within")
        assert certificate.leakage.any() == (alpha < threshold)
        most = certificate.bound.max()
        if certificate.within is not None:
            assert most <= certificate.within <= 1.01 * most
            assert f"a difference of at most {certificate.within:g} for all |x| ≤ 2" in verdict.sentence
            assert "leakage" in verdict.sentence
        records.append((path, certificate))
    models = nn.ModuleDict({path: conv for path in layers}), nn.ModuleDict(layers)
    result = Files(tmp_path).write(records, *models).check()
    assert result.verdict.name == "PROVED", result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("alpha", [1e-3, 1.0, 46.0, 103.0])
def test_undecided_for_leakage_says_what_to_do(alpha: float, dtype: torch.dtype):
    """Both remedies that it names work."""
    conv = nn.Conv2d(2, 3, 3, padding=1, dtype=dtype)
    verdict = certify(conv, conv_to_mhsa(conv, alpha=alpha), grid=(6, 5)).verdict
    assert verdict.name == "UNDECIDED"
    assert verdict.sentence.startswith("step 3 (leakage)")
    within = float(verdict.sentence.split("within=")[1].split(",")[0])
    sharp = float(verdict.sentence.split("take α from ")[1].split(" ")[0])
    assert certify(conv, conv_to_mhsa(conv, alpha=alpha), grid=(6, 5), within=within).verdict.name == "PROVED"
    assert certify(conv, conv_to_mhsa(conv, alpha=sharp), grid=(6, 5)).verdict.name == "PROVED"
    assert sharp == (746 if dtype == torch.float64 else 104)


@pytest.mark.parametrize("alpha", [1.0, 46.0, 1024.0])
@pytest.mark.parametrize(
    "fault", [*ULPS, "values of two heads swapped", "two heads at one shift", "another padding mode"]
)
def test_a_derived_bound_excuses_no_other_fault(alpha: float, fault: str):
    conv = nn.Conv2d(2, 3, 3, padding=1).requires_grad_(False)
    layer = FAULTS[fault].plant(conv, conv_to_mhsa(conv, alpha=alpha), np.random.default_rng(0))
    assert judged(conv, layer, (6, 5), leaking=True)[1].name in ("UNDECIDED", "REFUTED")


@settings(max_examples=settings().max_examples // 3)
@given(convolutions(), st.data())
def test_any_layer_of_any_sharpness(conv: Any, data: st.DataObject):
    grid = data.draw(sizes_for(conv, tokens=40))
    assume(is_quick(conv, grid))
    layer = conv_to_mhsa(conv, alpha=10 ** data.draw(st.floats(-4, 3.2)))
    certificate, verdict = judged(conv, layer, grid, leaking=True)
    assert verdict.name == "PROVED", certificate
    assert (certificate.within is not None) == bool(certificate.leakage.any())


def heavy(alpha: float, encoding: str = "quadratic") -> tuple[Any, Any]:
    """Weights of 1e10, so that e^−α times an input of 1e3 is nonzero in float32."""
    conv = nn.Conv2d(2, 2, 3, padding=1, bias=False)
    conv.weight.data *= 1e10
    return conv, conv_to_mhsa(conv, alpha=alpha, encoding=encoding)


@pytest.mark.parametrize("alpha", [103.98, 104.0, 105.0, 107.5, 110.0, 120.0])
@pytest.mark.parametrize("encoding", ["quadratic", "parabola"])
def test_what_float64_keeps_of_weights_that_float32_has_no_number_for_refutes_nothing(alpha: float, encoding: str):
    conv, layer = heavy(alpha, encoding)
    certificate = certify(conv, layer, grid=(6, 6), input_bound=1e6)
    assert certificate.verdict.name == "PROVED", certificate.verdict
    x = np.zeros((1, 2, 6, 6))
    x[:, :, 3, 3] = 1e6
    for probe in run_executions(conv, layer, x, certificate.bound):
        assert probe.worst < 1, probe
    nothing = conv(torch.from_numpy(x).float()) == 0
    for layer.execution in EXECUTIONS:
        assert not layer(torch.from_numpy(x).float())[nothing].any()


@pytest.mark.parametrize("alpha", [104.0, 1024.0])
@pytest.mark.parametrize("execution", list(EXECUTIONS))
def test_a_zero_is_a_zero(execution: str, alpha: float, monkeypatch: pytest.MonkeyPatch):
    """Where float32 has no number for e^−α, an execution that keeps the least remainder is found."""
    conv, layer = heavy(alpha)
    break_execution(monkeypatch, execution, lambda run, *args: run(*args) + 1e-32)
    assert certify(conv, layer, grid=(6, 6), input_bound=1e6).verdict.name == "REFUTED"
