"""Learnable encodings: what they compute in every execution, their initial values, what refuses them, and what files keep."""

import copy
import itertools
import json
import math
from typing import Any, cast

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize

import construct
import verify
from construct import MHSA, ConvGeometry, MHSAWeights, conv_to_mhsa
from construct.attention import EXECUTIONS
from construct.encoding import quadratic
from construct.encoding.encodings import Covariance, Parabola, Quadratic, Relative
from construct.errors import BadModelFile, UnsupportedLayer
from construct.execution.traced import freeze
from construct.modules.learning import gate_content, learned_covariance, learned_quadratic, settle, with_covariance
from examples.learned.starting import ENCODINGS, attention_to_learn, convolution_to_learn
from runs import SMALL, normal, peak_bytes
from truths import layer_of
from verify.plots.stored_layer import layer_in
from verify.recheck.stored_layers import layers_in
from verify.strategies import Case, cases

EXAMPLES = settings().max_examples


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_the_covariance_scores_a_gaussian(dims: int):
    """On symbols, the code that runs gives −½(δ − τ)ᵀΣ⁻¹(δ − τ) plus a term without δ."""
    delta, tau = ([sympy.Symbol(f"{name}{i}") for i in range(dims)] for name in "dt")
    p = sympy.Matrix(dims, dims, lambda i, j: sympy.Symbol(f"p{min(i, j)}{max(i, j)}"))
    v, r = quadratic.v_covariance(tau, p.tolist()), quadratic.r_covariance(delta)
    assert len(v) == len(r) == Covariance().pos_dim(dims) == dims * (dims + 3) // 2
    score = sum(a * b for a, b in zip(v, r, strict=True))
    away = sympy.Matrix([a - b for a, b in zip(delta, tau, strict=True)])
    rest = sympy.expand(score + (away.T * p * away)[0] / 2)
    assert not rest.free_symbols & {*delta}
    assert sympy.expand(rest - (sympy.Matrix(tau).T * p * sympy.Matrix(tau))[0] / 2) == 0


@settings(max_examples=EXAMPLES // 2)
@given(cases(tokens=60, dtypes=(torch.float64,)), st.sampled_from((0.25, 1.0, 3.0, 1024.0)))
def test_an_isotropic_covariance_is_the_quadratic_encoding(case: Case, alpha: float):
    layer = conv_to_mhsa(case.conv, alpha=alpha, execution="dense")
    gaussian = with_covariance(layer)
    torch.testing.assert_close(gaussian.centres(), layer.centres(), rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        for gaussian.execution in ("dense", "auto"):
            torch.testing.assert_close(gaussian(case.x), layer(case.x), rtol=1e-9, atol=1e-9)


def test_a_covariance_tells_its_centre_and_its_least_curvature():
    p = torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double()
    v = torch.tensor([quadratic.v_covariance((1.25, -3.0), p.tolist())]).double()
    alpha, tau = Covariance().centres(v)
    assert alpha.item() == pytest.approx(torch.linalg.eigvalsh(p)[0].item() / 2, rel=1e-14)
    torch.testing.assert_close(tau, torch.tensor([[1.25, -3.0]]).double())
    flat = Covariance().centres(torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0]]).double())
    assert flat[0].item() == 0
    assert bool(flat[1].isnan().all())
    with pytest.raises(ValueError, match="no centres"):
        layer_of("relative", SMALL["1-D"][0]).centres()


def sharpened(kind: str) -> MHSA:
    """A layer whose one-hot heads all look two down and one left, within a 5 × 5 kernel."""
    geometry = ConvGeometry(1, 1, (5, 5), (1, 1), (2, 2), "zeros", (1, 1), 1)
    layer = layer_of(kind, geometry, content=False)
    with torch.no_grad():
        if kind == "covariance":
            c = [torch.tensor(x) for x in quadratic.v_covariance((2.0, -1.0), [[8192.0, 2048.0], [2048.0, 4096.0]])]
        else:
            c = [torch.tensor(1.0)] * layer.encoding.pos_dim(2)
            for name, shift in zip(layer.offsets, (2, -1), strict=True):
                table = getattr(layer, name)
                table.zero_()
                table[len(table) // 2 + shift] = 1000.0
        layer.v.zero_()
        layer.v[:, : len(c)] = torch.stack(c)
        layer.w_key_pos.copy_(torch.eye(*layer.w_key_pos.shape[1:]))
    return layer


@pytest.mark.parametrize("kind", ["covariance", "relative"])
def test_a_sharp_head_copies_tokens_and_says_so(kind: str):
    layer, x = sharpened(kind), normal(1, 1, 5, 4).requires_grad_()
    assert layer.explain(x.shape).endswith("; heads here: 2 as shifts")
    results = []
    for layer.execution in ("auto", "dense"):
        y = layer(x)
        learned = [x, *(p for p in layer.parameters() if p.requires_grad)]
        results.append((y, *torch.autograd.grad(y.square().sum(), learned)))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        padded, w = nn.functional.pad(x, (2, 2, 2, 2))[0, 0], (layer.w_val @ layer.w_out).sum()
        # From the query in the middle of the kernel, (2, −1) is its tap (4, 1).
        torch.testing.assert_close(layer(x)[0, 0], padded[4:9, 1:5] * w + layer.b_out, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["covariance", "relative", "taps"])
def test_what_cannot_take_a_layer_says_so_in_one_line(kind: str):
    layer, x = layer_of(kind, SMALL["2-D, stride, groups"][0], content=False), normal(1, 4, 3, 3)
    assert layer(x).shape == (1, 2, 2, 5)
    with pytest.raises(ValueError, match=f"the {kind} encoding cannot be traced"):
        freeze(layer)
    with pytest.raises(UnsupportedLayer, match=f"no form of the {kind} encoding"):
        construct.to_torch_mha(layer.requires_grad_(False), grid=(3, 3))


@pytest.mark.parametrize("content", [False, True])
def test_offsets_beyond_the_table_are_refused_in_one_line(content: bool):
    layer = attention_to_learn(1, 1, 2, encoding="relative", reach=(3, 4), content=content)
    assert layer.has_content() == content
    assert layer(torch.ones(1, 1, 4, 5)).shape == (1, 1, 4, 5)
    for layer.execution in EXECUTIONS:
        with pytest.raises(ValueError, match=r"^MHSA: the learned offsets of axis 2 go from -4 to 4, .* -5 to 5$"):
            layer(torch.ones(1, 1, 4, 6))


@pytest.mark.parametrize("kind", ["covariance", "relative", "taps"])
@pytest.mark.parametrize("execution", ["dense", "axial"])
def test_what_an_execution_says_it_takes_is_no_less_than_it_does(execution: str, kind: str):
    one = (1, 1)
    for content in (False, True):
        layer = layer_of(kind, ConvGeometry(8, 8, one, one, (0, 0), "zeros", one, 1), content).requires_grad_(False)
        layer.execution = execution
        x = normal(2, 8, 9, 9)
        peak_bytes(lambda layer=layer, x=x: layer(x))
        line = next(line for line in layer.explain(x.shape).splitlines() if line.startswith(execution))
        stated = float(line.split("multiplications")[1].split("MiB")[0]) * 2**20
        assert peak_bytes(lambda layer=layer, x=x: layer(x)) <= stated * 1.001 + 2**12


@pytest.mark.parametrize("kind", ["covariance", "relative", "taps"])
def test_an_audit_and_a_report_take_any_encoding(kind: str, tmp_path: Any):
    one = (1, 1)
    layer = layer_of(kind, ConvGeometry(1, 1, one, one, (0, 0), "zeros", one, 1), content=False)
    result = verify.audit(layer, (5, 4))
    # with one tap, and one score for all other shifts, each query averages the same tokens: a large kernel
    assert result.exact == (kind == "taps")
    assert result.heads is not None
    assert len(result.heads) == 2
    verify.write_report(tmp_path / "page.html", nn.Conv2d(1, 1, 1, dtype=torch.float64), layer)
    assert f"its encoding is {kind}" in (tmp_path / "page.html").read_text(encoding="utf-8")


@settings(max_examples=EXAMPLES // 2)
@given(cases(tokens=60, dtypes=(torch.float32, torch.float64)), st.sampled_from(("quadratic", "covariance")))
def test_what_learns_from_a_convolution_starts_as_it(case: Case, kind: str):
    """At full sharpness attention is one-hot, so outputs equal those of the built layer exactly."""
    built, learned = conv_to_mhsa(case.conv), convolution_to_learn(case.conv, alpha=1024.0, encoding=kind)
    built.execution = learned.execution = "dense"
    with torch.no_grad():
        assert torch.equal(learned(case.x), built(case.x))
        learned.execution = "auto"
        torch.testing.assert_close(learned(case.x), built(case.x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["quadratic", "covariance"])
def test_parametrized_aims_learn_and_can_be_settled(kind: str):
    learned = convolution_to_learn(nn.Conv2d(2, 2, 3, padding=1, dtype=torch.float64), alpha=2.0, encoding=kind)
    x, frozen = normal(1, 2, 4, 4), copy.deepcopy(learned)
    first = learned(x)
    first.square().sum().backward()
    gradients = [learned.get_parameter(f"parametrizations.v.original{n}").grad for n in (0, 1)]
    assert all(g is not None and g.abs().amax() > 1e-3 for g in gradients)
    assert type(settle(frozen)) is MHSA
    assert not frozen.v.requires_grad
    assert torch.equal(frozen.v, learned.v)
    assert torch.equal(frozen(x), first)
    again = learned_quadratic(frozen) if kind == "quadratic" else learned_covariance(frozen)
    torch.testing.assert_close(again.v, learned.v, rtol=1e-14, atol=1e-14)
    with pytest.raises(ValueError, match="parametrized already"):
        (learned_quadratic if kind == "quadratic" else learned_covariance)(again)
    half = learned.half()
    assert half.v.dtype == torch.float64
    assert half.w_val.dtype == torch.float16


def test_an_aim_that_is_none_is_refused():
    layer = conv_to_mhsa(nn.Conv2d(1, 1, 1), alpha=1.0)
    layer.v.data[0, 0] = 1.0
    with pytest.raises(ValueError, match="head 0 has no centre"):
        learned_quadratic(layer)
    assert not parametrize.is_parametrized(layer)
    with pytest.raises(ValueError, match="head 0 must be a Gaussian"):
        learned_covariance(with_covariance(layer))
    with pytest.raises(ValueError, match="takes the covariance encoding, not the quadratic one"):
        learned_covariance(layer)
    layer.w_key_pos.data *= 2
    with pytest.raises(ValueError, match="Ŵ_key"):
        learned_quadratic(layer)
    layer.u.data += 1
    with pytest.raises(ValueError, match="without content"):
        with_covariance(layer)
    with pytest.raises(ValueError, match="takes the quadratic encoding"):
        with_covariance(conv_to_mhsa(nn.Conv2d(1, 1, 1), encoding="parabola"))


@settings(max_examples=EXAMPLES // 2)
@given(cases(tokens=60, dtypes=(torch.float64,)))
def test_a_closed_gate_changes_nothing_and_can_open(case: Case):
    built = conv_to_mhsa(case.conv, alpha=1.5, execution="dense")
    layer = copy.deepcopy(built)
    gate_content(layer, generator=torch.Generator().manual_seed(0))
    expected = built(case.x)
    torch.testing.assert_close(layer(case.x), expected, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        assert not layer.has_content()
        assert torch.equal(layer(case.x), expected)
        layer.get_parameter("parametrizations.w_qry.0.gate").fill_(1.0)
        assert layer.has_content() == bool(layer.w_key.any())


def test_the_gates_have_gradients_while_closed_and_none_at_full_sharpness():
    conv, x = nn.Conv2d(2, 2, 3, padding=1, dtype=torch.float64), normal(2, 2, 5, 5)
    for alpha, moves in ((1.0, True), (1024.0, False)):
        layer = gate_content(conv_to_mhsa(conv, alpha=alpha))
        layer(x).square().sum().backward()
        gate = layer.get_parameter("parametrizations.w_qry.0.gate")
        assert gate.grad is not None
        assert bool(gate.grad.any()) == moves
    with pytest.raises(ValueError, match="parametrized already"):
        gate_content(layer)  # pyright: ignore[reportPossiblyUnboundVariable]
    other = conv_to_mhsa(conv)
    other.u.data += 1
    with pytest.raises(ValueError, match="u attends"):
        gate_content(other)


@pytest.mark.parametrize("kind", ENCODINGS)
def test_every_kind_of_attention_learns_all_that_it_uses(kind: str):
    generator = torch.Generator().manual_seed(1)
    layer = attention_to_learn(4, 6, 4, encoding=kind, content=True, reach=(3, 2), generator=generator)
    layer(normal(2, 4, 4, 3).float()).square().sum().backward()
    for name, tensor in layer.named_parameters():
        assert (tensor.grad is not None) == tensor.requires_grad, name
        assert tensor.grad is None or tensor.grad.abs().amax() > 0, name
    assert not layer.w_val.requires_grad
    assert torch.equal(layer.w_val[2, 0], torch.eye(4))
    assert layer.heads == 4
    narrow = attention_to_learn(4, 6, 4, encoding="quadratic", head_dim=3)
    assert narrow.w_val.shape == (4, 1, 4, 3)
    assert narrow.w_val.requires_grad


@pytest.mark.parametrize("kind", ["quadratic", "covariance"])
def test_the_starts(kind: str):
    local = attention_to_learn(2, 2, 9, encoding=kind, start="local", alpha=1.5)
    alpha, tau = local.centres()
    torch.testing.assert_close(alpha, torch.full((9,), 1.5).double(), rtol=1e-6, atol=0)
    shifts = sorted(tuple(round(float(t), 5) for t in row) for row in tau)
    assert shifts == [*itertools.product((-1, 0, 1), repeat=2)]
    seeds = [torch.Generator().manual_seed(seed) for seed in (0, 0, 1)]
    drawn = [attention_to_learn(2, 2, 400, encoding=kind, generator=seed) for seed in seeds]
    tau = drawn[0].centres()[1]
    assert abs(float(tau.std()) - 2) < 0.15
    assert torch.equal(tau, drawn[1].centres()[1])
    assert not torch.equal(tau, drawn[2].centres()[1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"encoding": "sine"}, "no encoding 'sine'"),
        ({"start": "far"}, "no start 'far'"),
        ({"alpha": 0.0}, "must be positive"),
        ({"alpha": math.nan}, "must be positive"),
        ({"encoding": "none"}, "nothing to learn"),
        ({"encoding": "relative"}, "needs its reach"),
        ({"encoding": "relative", "reach": (3,)}, "needs its reach"),
        ({"heads": 8, "start": "local"}, "8 heads are no kernel"),
        ({"heads": 0}, "whole number"),
        ({"heads": -1}, "whole number"),
        ({"heads": 2.5}, "whole number"),
        ({"alpha": 1e39}, "sharpness"),
        ({"head_dim": 0}, "whole number"),
        ({"key_dim": 0}, "whole number"),
        ({"key_dim": 2}, "D_k is 2"),
    ],
    ids=str,
)
def test_what_cannot_start_is_refused(options: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        attention_to_learn(2, 2, **cast(Any, {"heads": 4} | options))


def test_starts_of_other_kinds_are_refused():
    with pytest.raises(ValueError, match="no encoding 'parabola' to learn"):
        convolution_to_learn(nn.Conv1d(1, 1, 1), alpha=1.0, encoding="parabola")


def test_an_encoding_and_weights_that_do_not_fit_are_refused():
    layer = layer_of("covariance", SMALL["1-D"][0])
    weights = MHSAWeights(**{name: getattr(layer, name).detach() for name in MHSAWeights.__dataclass_fields__})
    with pytest.raises(ValueError, match="D_p is 2, and this encoding in 1 dimensions has 5"):
        MHSA(layer.geometry, weights, encoding=Relative((torch.ones(3, 5),)))
    with pytest.raises(ValueError, match="2 tables of offsets for 1 dim"):
        MHSA(layer.geometry, weights, encoding=Relative((torch.ones(3, 1),) * 2))
    with pytest.raises(ValueError, match="not \\(2·reach \\+ 1, width\\)"):
        Relative((torch.ones(4, 1),))
    with pytest.raises(ValueError, match="give a radix or an encoding"):
        MHSA(layer.geometry, weights, radix=(1,), encoding=Quadratic())
    assert MHSA(layer.geometry, weights, encoding=Parabola((1,))).radix == (1,)
    with pytest.raises(ValueError, match="not a sum over the axes"):
        Covariance().along(None, None, 0)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("kind", ["covariance", "relative", "taps"])
def test_files_keep_the_encoding(kind: str, suffix: str, tmp_path: Any):
    layer = layer_of(kind, SMALL["2-D, stride, groups"][0])
    path = tmp_path / f"layer{suffix}"
    construct.save(layer, path)
    again = construct.load(path)
    assert isinstance(again, MHSA)
    assert again.encoding.name == kind
    x = normal(1, 4, 3, 3)
    layer.requires_grad_(False)  # as scores are read: those that learn are evaluated by other kernels
    again.requires_grad_(False)
    assert torch.equal(again(x), layer(x))
    assert torch.equal(layer_in(path).requires_grad_(False)(x), layer(x))
    stored = layers_in(path).layers[""]  # the checker knows no such scores
    assert stored.kind == "unknown" or "encoding" in (stored.geometry or {})
    net = nn.Sequential(nn.Identity(), layer)
    construct.save(net, path)
    assert torch.equal(construct.load(path).get_submodule("1")(x), layer(x))


def test_files_refuse_what_contradicts_itself_or_is_worked_out(tmp_path: Any):
    from safetensors import safe_open
    from safetensors.torch import save_file

    layer, path = layer_of("relative", SMALL["1-D"][0]), tmp_path / "layer.pt"
    layer._encoding = "fourier"
    torch.save(layer, path)
    with pytest.raises(BadModelFile, match="no encoding 'fourier'"):
        construct.load(path)
    layer._encoding = "relative"
    del layer._parameters["offsets_1"]
    torch.save(layer, path)
    with pytest.raises(BadModelFile, match="offsets_1"):
        construct.load(path)
    whole = tmp_path / "layer.safetensors"
    construct.save(layer_of("covariance", SMALL["1-D"][0]), whole)
    with safe_open(whole, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        stated = json.loads(file.metadata()["geometry"])
    stated[""]["encoding"] = "relative"
    save_file(tensors, whole, {"geometry": json.dumps(stated)})
    with pytest.raises(BadModelFile, match="offsets_1"):
        construct.load(whole)
    learned = convolution_to_learn(nn.Conv1d(1, 1, 1), alpha=1.0)
    for name in ("learned.pt", "learned.safetensors"):
        with pytest.raises(BadModelFile, match=r"are parametrized \(construct.modules.learning.settle"):
            construct.save(learned, tmp_path / name)
    construct.save(settle(learned), tmp_path / "learned.pt")
    assert torch.equal(construct.load(tmp_path / "learned.pt").get_parameter("v"), learned.v)
