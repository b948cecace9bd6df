"""Trainable attention from a trained CNN: the same function, then a lower α, then gated content
attention.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import construct
from construct.attention import MHSA
from construct.execution.head_matrices import is_identity
from construct.modules.learning import gate_content, learned_quadratic, with_key_dim
from verify.samples.sampling import watching


@dataclass(frozen=True)
class Way:
    """One way to fine-tune a trained CNN.

    Attributes:
        label: its name in tables.
        attention: whether its convolutions become attention.
        soft: whether α is lowered, so that α and τ learn.
        content: whether gated content attention is added.
        longer: a factor on the number of epochs.
    """

    label: str
    attention: bool = True
    soft: bool = True
    content: bool = False
    longer: int = 1


WAYS = {
    "cnn": Way("the CNN itself", attention=False, soft=False),
    # About as many seconds as attention takes: the baseline for equal time, as the other is for
    # equal epochs.
    "cnn-longer": Way(
        "the CNN itself, ten times as many epochs", attention=False, soft=False, longer=10
    ),
    "sharp": Way("attention at α = 1024, values alone learn", soft=False),
    "positions": Way("attention that learns α and τ"),
    "content": Way("attention that learns α, τ and content", content=True),
}


def attentions(network: nn.Module) -> dict[str, MHSA]:
    """The attention layers by name, in order."""
    return {name: module for name, module in network.named_modules() if isinstance(module, MHSA)}


def as_attention(cnn: nn.Sequential) -> nn.Module:
    """The same function, with exactly the CNN's trainable parameters: the taps and its own biases
    learn, and nothing else.

    One of W_val and W_out is the identity and stays so; biases that the convolution does not have
    stay zero.
    """
    network = construct.convert(cnn)
    for layer in attentions(network).values():
        for factor in (layer.w_val, layer.w_out):
            if is_identity(factor):
                factor.requires_grad_(False)
                break
    return network


@torch.no_grad()
def softened(network: nn.Module, alpha: float) -> nn.Module:
    """A copy whose heads all have this α and look where they looked before; its α and τ are still
    fixed.
    """
    network = copy.deepcopy(network)
    for layer in attentions(network).values():
        layer.v.mul_(alpha / layer.centres()[0][:, None].to(layer.v.dtype))
    return network


def network_for(
    cnn: nn.Sequential,
    way: Way,
    alpha: float,
    key_dim: int,
    seed: int,
    content_layers: tuple[str, ...],
    execution: str = "dense",
) -> nn.Module:
    """The network of one way in eval mode, before its first step.

    Args:
        cnn: the trained CNN; not changed.
        way: how to continue.
        alpha: the initial sharpness, where it is lowered.
        key_dim: D_k of content attention, at least d + 1.
        seed: the seed of W_qry and W_key.
        content_layers: the layers that may learn content, by the first part of their names.
        execution: of the layers that learn; "dense" on small pictures, as content does not
            factorise.

    Returns:
        The network; it stays in eval mode in training, as batch normalisation by batches would
        itself change the function.
    """
    if not way.attention:
        return copy.deepcopy(cnn).eval()
    network = as_attention(cnn.eval())
    if not way.soft:
        return network.eval()
    network, generator = softened(network, alpha), torch.Generator().manual_seed(seed)
    for name, layer in attentions(network).items():
        content = way.content and name.partition(".")[0] in content_layers
        layer = with_key_dim(layer, max(key_dim, layer.v.shape[1])) if content else layer
        learned_quadratic(layer)
        if content:
            gate_content(layer, generator=generator)
        layer.execution = execution
        network.set_submodule(name, layer)
    return network.eval()


def trainable(network: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trainable parameters: (values, biases and norms, as in a CNN; the attention's)."""
    own, layers = ("w_val", "w_out", "b_out"), attentions(network).values()
    positional = {p for layer in layers for name, p in layer.named_parameters() if name not in own}
    learned = [p for p in network.parameters() if p.requires_grad]
    return [p for p in learned if p not in positional], [p for p in learned if p in positional]


@torch.no_grad()
def inputs_of(network: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The input of every attention layer when the network runs on x."""
    inputs: dict[str, Tensor] = {}
    with watching(attentions(network), inputs.__setitem__):
        network(x)
    return inputs
