"""The verified checker for tests, and pairs of layers for it and for our checker."""

import os
import tempfile
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from construct import MHSA
from verify.checker import StepFails, parts_of
from verify.coq.building import NotBuilt, program
from verify.coq.verified import export
from verify.coq.verified.judging import Answer, Judge, Question
from verify.layers.fields import digests, stated_geometry
from verify.recheck.certificate_file import PARTS, LayerCertificate
from verify.recheck.layer_pair import LayerPair
from verify.recheck.stored_layers import TENSORS, StoredLayer, layers_in
from verify.recheck.strict_input import Rejected


def built() -> Any:
    """The program; without it the test is skipped, or fails if the environment says COQ_TESTS=required."""
    try:
        return program()
    except NotBuilt as error:
        if os.environ.get("COQ_TESTS") == "required":
            pytest.fail(f"{error}, and COQ_TESTS=required")
        pytest.skip(str(error))


def stored(layer: Any) -> StoredLayer:
    """A layer as the checker reads it from a file."""
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        torch.save(layer, file)
        file.flush()
        return layers_in(file.name).layers[""]


def pair_of(conv: Any, layer: MHSA, grid: tuple[int, ...], within: float | None = None) -> LayerPair:
    """Both layers with a certificate that claims as much as our checker would accept; `Rejected` if it cannot read the pair."""
    parts: dict[str, np.ndarray] = {part: np.zeros(conv.out_channels) for part in PARTS}
    stated = LayerCertificate(
        name="",
        verdict="UNDECIDED",
        grid=grid,
        input_bound=1.0,
        within=within,
        dtype=str(conv.weight.dtype).removeprefix("torch."),
        heads=layer.heads,
        parts=parts,
        observed=np.zeros(conv.out_channels),
        holds=True,
        geometries=(stated_geometry(conv), stated_geometry(layer)),
        digests=(digests(conv, ("weight", "bias")), digests(layer, TENSORS)),
        counterexample=None,
    )
    pair = LayerPair.read(stated, stored(conv), stored(layer))
    if proved(pair):
        stated = stated._replace(verdict="PROVED", parts=parts_of(pair)[0])
    return replace(pair, stated=stated)


def proved(pair: LayerPair) -> bool:
    """Whether our checker confirms the certificate's claim about this pair."""
    try:
        parts, exact = parts_of(pair)
    except (StepFails, OverflowError, Rejected):
        return False
    within = pair.stated.within
    return exact if within is None else bool(parts["bound"].max(initial=0.0) <= within)


class Asked(Judge):
    """The verified checker, without weight files."""

    def __init__(self) -> None:
        self.program, self.digests, self.answers = built(), ["1f", "2e"], []

    def answer(self, pair: LayerPair, *numbers: str) -> Answer:
        """Its answer about a pair, by default to the certificate's questions."""
        if numbers:
            return self._answer(pair, [Question(text, text) for text in numbers])
        self(pair)
        return self.answers.pop()

    def text(self, pair: LayerPair, questions: list[str]) -> str:
        """The program's input text for these questions about a pair."""
        stated = pair.stated
        return "".join(
            export.text(self.digests, questions, stated.geometries, pair.weight, pair.bias, pair.a, stated.grid)
        )
