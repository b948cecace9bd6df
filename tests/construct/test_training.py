"""Autograd through a layer gives the convolution's gradients, in the layout of their tensors, from one graph node."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from construct import MHSA, conv_to_mhsa
from runs import whole_numbers

LAYERS: dict[str, Any] = {
    "1x1": lambda: nn.Conv2d(24, 40, 1),
    "1x1 in groups": lambda: nn.Conv2d(24, 12, 1, groups=3),
    "1x1 in steps": lambda: nn.Conv2d(24, 40, 1, stride=2),
    "3x3": lambda: nn.Conv2d(24, 40, 3, padding=1),
    "3x3 in steps": lambda: nn.Conv2d(24, 16, 3, stride=2, padding=1),
    "depthwise": lambda: nn.Conv2d(24, 24, 3, padding=1, groups=24),
    "transposed": lambda: nn.ConvTranspose2d(24, 16, 4, stride=2, padding=1),
    "transposed, few channels": lambda: nn.ConvTranspose2d(24, 8, 4, stride=2, padding=1),
    "few outputs": lambda: nn.Conv2d(24, 3, 3, padding=1),
    "few outputs, many steps": lambda: nn.Conv2d(24, 3, (3, 5), stride=(1, 2), padding=2, dilation=2),
    "few outputs, transposed": lambda: nn.ConvTranspose2d(24, 3, 5, stride=(3, 2), padding=1, output_padding=1),
    "reflect": lambda: nn.Conv2d(24, 16, 3, padding=1, padding_mode="reflect"),
}
LAYOUTS = {
    "channels first": lambda x: x.contiguous(),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
}


def exact_layer(name: str, side: int, images: int, alone: bool) -> tuple[Any, MHSA, Tensor]:
    """A convolution, its layer (``alone``: its identities are not trained), and an input, all of small integers."""
    conv = whole_numbers(LAYERS[name](), 16)
    layer = conv_to_mhsa(conv)
    if alone:
        (layer.w_val if layer.out_channels > layer.in_channels else layer.w_out).requires_grad_(False)
    return conv, layer, torch.randint(-3, 4, (images, 24, side, side)).float()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own, the first time
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("lying", ["channels first", "channels last"])
@pytest.mark.parametrize("name", LAYERS)
def test_several_gradients_at_once_are_the_convolution_s(name: str, lying: str) -> None:
    """Which torch maps over with its older vmap; once more for second derivatives, and carried forward."""
    conv, layer, x = exact_layer(name, 5, 2, alone=False)
    x = LAYOUTS[lying](x).requires_grad_()
    results = []
    for run in (layer, conv):
        y = run(x)
        given = LAYOUTS[lying](torch.arange(3 * y.numel()).view(-1, *y.shape[1:]).remainder(5) - 2.0).unflatten(
            0, (3, -1)
        )
        given.requires_grad_()
        bias: Any = run.bias
        first = torch.autograd.grad(y, [x, bias], given, is_grads_batched=True, create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), given)

        def few(part: Tensor, run: nn.Module = run) -> Tensor:
            return run(x + part)[:, 0].sum((0, -1))

        part = torch.zeros(2, 1, 1, 5)
        jacobians = [
            torch.autograd.functional.jacobian(few, part, vectorize=True, strategy=strategy)
            for strategy in ("reverse-mode", "forward-mode")
        ]
        results.append([*first, *second, *jacobians])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients_lie_as_the_input_does(name: str, form: Any) -> None:
    """Also if the incoming gradient has another layout, like that of a sum."""
    _, layer, x = exact_layer(name, 9, 2, alone=True)
    x = x.contiguous(memory_format=form)
    with torch.no_grad():
        assert layer(x).is_contiguous(memory_format=form)
    y = layer(x.requires_grad_())
    assert y.is_contiguous(memory_format=form)
    if name != "reflect":  # there the padding determines the layout
        assert torch.autograd.grad(y.sum(), x)[0].is_contiguous(memory_format=form)


def test_weights_that_change_before_they_are_used_again_are_noticed() -> None:
    """The saved factor is its head's whole matrix, not a copy."""
    for alone in (True, False):
        _, layer, x = exact_layer("1x1", 6, 1, alone)
        y = layer(x.requires_grad_())
        with torch.no_grad():
            layer.w_out.add_(1)
        with pytest.raises(RuntimeError, match="modified"):
            y.sum().backward()
