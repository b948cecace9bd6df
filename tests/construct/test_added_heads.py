"""``construct.learn``: the same function on day one, gradients from the first step, and everything that a layer can do."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize

import construct
import verify
from construct import MHSA, conv_to_mhsa, tokens
from construct.files.export import to_onnx, to_pt2
from construct.modules.added_heads import AddedHeads
from construct.modules.learning import settle
from runs import normal
from verify.oracle import Unreadable
from verify.strategies import Case, cases

SCORES = ("w_qry", "w_key", "u", "v")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network() -> nn.Module:
    cnn = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return construct.convert(cnn)


def line_network() -> nn.Module:
    """The smallest network, for what traces it symbolically."""
    return construct.convert(nn.Sequential(nn.Conv1d(3, 4, 3, stride=2), nn.AdaptiveAvgPool1d(1), nn.Flatten()))


def trained(net: nn.Module, *size: int) -> nn.Module:
    """Trained on noise, so that every learned number moves."""
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.02)
    x, labels = normal(4, 3, *size).float(), torch.arange(4)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), labels).backward()
        optimizer.step()
    return net


@given(cases(tokens=60), st.integers(1, 3), st.sampled_from(("free", "none")), st.booleans(), st.integers(0, 99))
def test_it_is_the_same_function_bit_for_bit(case: Case, heads: int, position: str, recorded: bool, seed: int):
    layer = conv_to_mhsa(case.conv)
    with torch.set_grad_enabled(recorded):
        before = layer(case.x)
        dims, own = layer.geometry.dims, layer.heads
        changed = construct.learn(layer, heads=heads, key_dim=dims + 4, position=position, generator=generator(seed))
        assert torch.equal(layer(case.x), before)
    assert changed == {"": layer}
    assert layer.heads == own + heads
    assert layer.w_qry.shape == (own + heads, layer.in_channels, dims + 4)
    assert not layer.w_out[own:].any()
    assert layer.w_val[own:].any()


@settings(max_examples=settings().max_examples // 2)
@given(cases(tokens=60, dtypes=(torch.float64,), batches=(1, 2)), st.sampled_from(("free", "none")))
def test_it_learns_and_the_kernels_heads_stay(case: Case, position: str):
    """W_out has gradients at the first step, all else at the second; weight decay leaves where the kernel looks."""
    layer = conv_to_mhsa(case.conv)
    x, own = case.x + 0.1, layer.heads
    scores = {name: getattr(layer, name).detach().clone() for name in SCORES}
    construct.learn(layer, heads=2, key_dim=layer.geometry.dims + 3, position=position, generator=generator())
    learned = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(learned.values(), lr=0.01, weight_decay=1.0)
    for step in range(3):
        optimizer.zero_grad()
        y = layer(x)
        (y * normal(*y.shape).to(y)).sum().backward()
        moving = {name for name, p in learned.items() if p.grad is not None and p.grad.any()}
        values = {"w_val", "w_out"} | ({"b_out"} & {*learned})
        if step == 0:
            slope = learned["w_out"].grad
            assert slope is not None
            assert slope[own:].any() or not x.any()
            assert moving <= values
        elif x.abs().amax() > 0.2 and y[0, 0].numel() > 1 and not torch.equal(x, x.flatten()[0].expand_as(x)):
            assert all(p.grad is not None for p in learned.values())
        optimizer.step()
    for name, rows in scores.items():
        now = getattr(layer, name)[:own]
        assert torch.equal(now[..., : rows.shape[-1]], rows)
        assert not now[..., rows.shape[-1] :].any()
    with torch.no_grad():
        auto = layer(x)
        layer.execution = "dense"
        torch.testing.assert_close(auto, layer(x), rtol=1e-9, atol=1e-9)


def test_gradients_are_those_of_dense():
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1, stride=2, dtype=torch.float64))
    construct.learn(layer, key_dim=7, generator=generator())
    with torch.no_grad():
        layer.w_out += 0.1 * normal(*layer.w_out.shape)
        for name in SCORES:
            layer.get_parameter(f"parametrizations.{name}.original").add_(0.1)
    x = normal(2, 2, 6, 5).requires_grad_()
    wanted = [x, *(p for p in layer.parameters() if p.requires_grad)]
    results = []
    for layer.execution in ("auto", "dense"):
        first = torch.autograd.grad(layer(x).square().sum(), wanted, create_graph=True)
        second = torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), wanted)
        results.append((*first, *second))
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-8)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own
@pytest.mark.parametrize(
    ("make", "size", "position", "as_onnx"),
    [
        pytest.param(line_network, (9,), "free", False, id="a line"),
        pytest.param(network, (9, 8), "free", True, marks=pytest.mark.deep, id="free"),
        pytest.param(network, (9, 8), "none", True, marks=pytest.mark.deep, id="none"),
    ],
)
def test_a_network_learns_is_compiled_exported_settled_and_saved(
    make: Callable[[], nn.Module], size: tuple[int, ...], position: str, as_onnx: bool, tmp_path: Path
):
    net = make()
    changed = construct.learn(net, heads=2, key_dim=8, position=position, generator=generator())
    assert [*changed] == [name for name, layer in net.named_modules() if isinstance(layer, MHSA)]
    net = trained(net, *size).eval()
    x = normal(3, 3, *(n + 2 for n in size)).float()
    torch.compiler.reset()
    with torch.no_grad():
        y = net(x)
        backend = "inductor" if position == "none" else "aot_eager"
        compiled = torch.compile(net, fullgraph=True, backend=backend)(x)
        torch.testing.assert_close(compiled, y, rtol=1e-5, atol=1e-5)
    program = to_pt2(net, (3, *size))
    (tmp_path / "net.pt2").write_bytes(program.content)
    loaded = torch.export.load(tmp_path / "net.pt2").module()
    torch.testing.assert_close(loaded(x), y, rtol=1e-5, atol=1e-5)
    if as_onnx:
        session = onnxruntime.InferenceSession(to_onnx(net, (3, *size)).content)
        (there,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.as_tensor(there), y, rtol=1e-5, atol=1e-5)
    with pytest.raises(construct.errors.BadModelFile, match="settle"):
        construct.save(net, tmp_path / "net.pt")
    for layer in changed.values():
        settle(layer)
        assert not any(getattr(layer, name).requires_grad for name in (*SCORES, "w_key_pos"))
        own = 3 ** len(size)
        said = layer.explain((1, layer.in_channels, *(9 for _ in size)))
        assert said.endswith(f"; heads here: {own} as shifts, 2 over all keys")
    construct.save(net, tmp_path / "net.pt")
    with torch.no_grad():
        assert torch.equal(net(x), y)
        assert torch.equal(construct.load(tmp_path / "net.pt")(x), y)


def test_a_layer_is_certified_before_it_has_learned_and_after():
    """As it is, and settled; and a module that would compute other rows is not believed."""
    conv = nn.Conv2d(2, 3, 3, padding=1)
    layer = conv_to_mhsa(conv)
    construct.learn(layer, key_dim=6, generator=generator())
    assert verify.certify(conv, layer, grid=(6, 6)).verdict.name == "PROVED"
    with torch.no_grad():
        layer.w_out[-1] += 0.1
    certificate = verify.certify(conv, layer, grid=(6, 6))
    assert certificate.verdict.name != "PROVED"
    assert "heads 0 to 8 alone, with b_out: PROVED" in str(certificate)
    assert str(verify.certify(conv, settle(copy.deepcopy(layer)), grid=(6, 6))) == str(certificate)
    by = layer.get_submodule("parametrizations.v")
    assert isinstance(by, nn.ModuleList)
    for module, words in ((by, "has hooks"), (by[0], "has hooks")):
        hook = module.register_forward_hook(lambda *_: None)
        with pytest.raises(Unreadable, match=words):
            verify.certify(conv, layer, grid=(6, 6))
        hook.remove()
    by[0].forward = nn.Identity().forward
    with pytest.raises(Unreadable, match="forward of its own"):
        verify.certify(conv, layer, grid=(6, 6))
    other = conv_to_mhsa(conv)
    construct.learn(other, key_dim=6, alpha=2.0, generator=generator())
    with pytest.raises(Unreadable, match="v of ParametrizedMHSA is worked out from other parameters; settle it first"):
        verify.certify(conv, other, grid=(6, 6))


def test_heads_that_move_are_softened_and_learn_too():
    conv, x = nn.Conv2d(2, 2, 3, padding=1, dtype=torch.float64), normal(1, 2, 5, 5)
    layer, softer = conv_to_mhsa(conv), conv_to_mhsa(conv, alpha=2.0)
    construct.learn(layer, alpha=2.0, generator=generator())
    torch.testing.assert_close(layer(x), softer(x), rtol=1e-12, atol=1e-12)
    layer(x).square().sum().backward()
    for number in (0, 1):
        slope = layer.get_parameter(f"parametrizations.v.0.parametrizations.kept.original{number}").grad
        assert slope is not None
        assert slope.abs().amax() > 1e-3
    with torch.no_grad():
        before = layer(x)
        assert torch.equal(settle(layer)(x), before)


@torch.no_grad()
def test_what_is_cached_is_not_certified():
    conv = nn.Conv2d(2, 3, 3, padding=1)
    layer = conv_to_mhsa(conv)
    construct.learn(layer, key_dim=6, generator=generator())
    with parametrize.cached():
        layer.v.sum()
        layer.get_parameter("parametrizations.v.0.kept").mul_(1e-3)
        with pytest.raises(Unreadable, match="certify outside it"):
            verify.certify(conv, layer, grid=(6, 6))
    assert verify.certify(conv, layer, grid=(6, 6)).verdict.name != "PROVED"


def test_a_compiled_layer_follows_content_that_learns():
    """Compiled where no gradient is recorded and while its content is zero."""
    layer, x = conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1)), normal(1, 2, 5, 4).float()
    for name in ("w_qry", "w_key", "u"):
        layer.get_parameter(name).requires_grad_()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))
        layer.v *= 1e-3
        layer.w_qry += 0.3
        layer.w_key += normal(*layer.w_key.shape)
        torch.testing.assert_close(compiled(x), layer(x))


def test_where_reading_waits_a_step_reads_nothing(monkeypatch: pytest.MonkeyPatch):
    """As on a GPU: the kernel's heads are frozen, so what was read of them holds while the others learn."""
    monkeypatch.setattr(tokens, "host_waits", lambda device: True)
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1)).requires_grad_(False)
    construct.learn(layer, key_dim=6, generator=generator())
    x, asked = normal(2, 2, 5, 4).float(), []
    optimizer = torch.optim.SGD([p for p in layer.parameters() if p.requires_grad], lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        optimizer.step()

    def noted(name: str) -> Any:
        read = getattr(torch.Tensor, name)
        return lambda tensor: asked.append(name) or read(tensor)

    step()
    assert layer.explain((2, 2, 5, 4)).endswith("; heads here: 9 as shifts, 4 over all keys")
    for name in ("tolist", "cpu", "item", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, noted(name))
    step()
    step()
    assert not asked


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"position": "far"}, "no position 'far'; there are free, none"),
        ({"heads": 0}, "heads must be a whole number of at least 1, not 0"),
        ({"heads": 1.5}, "heads must be a whole number"),
        ({"key_dim": 3}, "0: key_dim must be a whole number of at least 4, not 3"),
        ({"key_dim": 2, "position": "none"}, "at least 3, not 2"),
        ({"layers": ["7"]}, "no attention layer '7'; there are '0', '2'"),
        ({"layers": "1"}, "no attention layer '1'"),
        ({"layers": []}, "no layer is named"),
        ({"alpha": -1.0}, "alpha must be positive, not -1.0"),
        ({"alpha": float("nan")}, "alpha must be positive"),
        ({"alpha": "4"}, "alpha must be positive, not '4'"),
    ],
    ids=str,
)
def test_what_cannot_learn_is_refused_and_nothing_is_changed(options: dict[str, Any], words: str):
    net = network()
    before = {name: p.clone() for name, p in net.state_dict().items()}
    with pytest.raises(ValueError, match=words):
        construct.learn(net, **options)
    assert all(torch.equal(before[name], p) for name, p in net.state_dict().items())


def test_layers_that_cannot_learn_are_named():
    net = network()
    construct.learn(net, layers=["2"], generator=generator())
    assert [m.heads for m in net.modules() if isinstance(m, MHSA)] == [9, 13]
    with pytest.raises(ValueError, match=r"^2: MHSA: it is parametrized already \(construct\.modules\.learning"):
        construct.learn(net)
    with pytest.raises(ValueError, match=r"no attention layer in it; construct\.convert makes them"):
        construct.learn(nn.Conv2d(1, 1, 1))
    pair = nn.ModuleList([conv_to_mhsa(nn.Conv1d(1, 1, 1)) for _ in range(2)])
    pair[1].w_val = pair[0].w_val
    with pytest.raises(ValueError, match="0: its w_val is that of another layer too"):
        construct.learn(pair)
    twice = nn.ModuleList([pair[0]] * 2)
    assert [*construct.learn(twice, generator=generator())] == ["0"]
    parabola = conv_to_mhsa(nn.Conv2d(1, 1, 3), encoding="parabola")
    with pytest.raises(ValueError, match="heads that move must have the quadratic encoding"):
        construct.learn(parabola, alpha=1.0)
    before = parabola(torch.ones(1, 1, 4, 4))
    construct.learn(parabola, generator=generator())
    assert torch.equal(parabola(torch.ones(1, 1, 4, 4)), before)
    with pytest.raises(ValueError, match="MHSA: head 9 attends to content, so no kernel is what the heads do"):
        _ = parabola.weight


@pytest.mark.parametrize("name", ["v", "w_key_pos"])
def test_added_rows_of_heads_without_content_are_read(name: str):
    """Where only these have added rows, a plan by the others' numbers would stay after they changed, certified or not."""
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1)).requires_grad_(False)
    parametrize.register_parametrization(layer, name, AddedHeads(getattr(layer, name)[:7].clone()))
    rows, x = layer.get_parameter(f"parametrizations.{name}.original"), normal(1, 2, 6, 5).float()
    before = layer(x)
    rows.data.neg_()
    assert not torch.allclose(layer(x), before)
    rows.data.neg_()
    assert torch.equal(layer(x), before)


class Masked(nn.Module):
    """What a parametrization of one's own keeps may be no rows."""

    kept: torch.Tensor

    def __init__(self, like: torch.Tensor):
        super().__init__()
        self.register_buffer("kept", torch.ones_like(like))

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * self.kept

    def right_inverse(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


@pytest.mark.parametrize("kind", [Masked, type("AddedHeads", (Masked,), {})])
def test_what_another_parametrization_keeps_is_no_head(kind: type[Masked]):
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1)).requires_grad_(False)
    parametrize.register_parametrization(layer, "v", kind(layer.v))
    x = normal(1, 2, 6, 5).float()
    before = layer(x)
    layer.get_parameter("parametrizations.v.original").data.neg_()
    assert not torch.allclose(layer(x), before)


def test_added_heads_beside_a_plain_tensor_are_not_read():
    layer, other = (conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1)).requires_grad_(False) for _ in range(2))
    parametrize.register_parametrization(other, "v", AddedHeads(other.v.clone()))
    layer.register_module("parametrizations", other.get_submodule("parametrizations"))
    x = normal(1, 2, 6, 5).float()
    before = layer(x)
    layer.v.data.neg_()
    assert not torch.allclose(layer(x), before)


def test_one_tensor_alone_may_be_settled():
    layer = conv_to_mhsa(nn.Conv2d(2, 3, 3, padding=1))
    construct.learn(layer, heads=2, key_dim=8, generator=generator())
    layer.requires_grad_(False).get_parameter("parametrizations.u.0.kept").fill_(0.5)
    x = normal(1, 2, 6, 5).float()
    before = layer(x)
    parametrize.remove_parametrizations(layer, "u")
    assert torch.equal(layer.requires_grad_(False)(x), before)
