"""The numbers of two layers, bit by bit, to see whether anything changes them while they are judged."""

from typing import Any

import torch
from torch import Tensor

from verify.layers.fields import TENSORS

WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""An integer of as many bytes as a number has."""


def copied(conv: Any, mhsa: Any) -> dict[str, Tensor]:
    """Every number of both layers, and their types."""
    return {name: words.clone() for name, words in _held(conv, mhsa).items()}


def unchanged(before: dict[str, Tensor], conv: Any, mhsa: Any) -> bool:
    """Whether both layers hold what was :func:`copied` of them, to the bit: 0 and −0 are not the same."""
    now = _held(conv, mhsa)
    return before.keys() == now.keys() and all(torch.equal(words, now[name]) for name, words in before.items())


def _held(conv: Any, mhsa: Any) -> dict[str, Tensor]:
    held = {f"conv.{name}": getattr(conv, name) for name in ("weight", "bias")}
    held |= {f"mhsa.{name}": getattr(mhsa, name) for name in TENSORS}
    found = {name: t.detach().resolve_neg() for name, t in held.items() if t is not None}
    return {f"{name} {t.dtype} {tuple(t.shape)}": t.view(WORDS[t.element_size()]) for name, t in found.items()}
