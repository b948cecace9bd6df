"""A search for false verdicts: random changes to random layers, with the verdicts compared with exact arithmetic."""

from collections import Counter
from itertools import islice, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from construct import MHSA, MHSAWeights, conv_to_mhsa
from construct.attention import EXECUTIONS
from runs import ORDINARY
from verify.argument.certification import certify
from verify.experiment.sweep.exact_layers import exactly_differ
from verify.layers.fields import TENSORS
from verify.layers.reading import GridRefused, output_size
from verify.oracle import Geometry
from verify.strategies import convolutions, sizes_for

EXAMPLES = max(80, settings().max_examples)  # fewer do not show every option


def scramble(t: dict[str, torch.Tensor], rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Make random changes; many keep the function, many do not, and combinations are unpredictable."""

    def pick() -> int:
        return int(rng.integers(len(t["v"])))

    def more(*heads: int) -> dict[str, torch.Tensor]:
        order = [*range(len(t["v"])), *heads]
        return {name: x if name == "b_out" else x[order].clone() for name, x in t.items()}

    h, name = pick(), str(rng.choice(["w_val", "w_out", "b_out"]))
    flat = t[name].view(-1)
    place = int(rng.integers(len(flat)))
    match int(rng.integers(13)):
        case 0:
            scale = float(2.0 ** rng.integers(-6, 7))
            t["w_val"][h] *= scale
            t["w_out"][h] /= scale
        case 1:
            t["v"][h] *= float(rng.choice([0.001, 0.1, 0.5, 1.5, 4, -1, 1e6]))
        case 2:
            order = torch.from_numpy(rng.permutation(len(t["v"])))
            for name in rng.choice(TENSORS[:-1], size=rng.choice([2, 7]), replace=False):
                t[name] = t[name][order]
        case 3:
            t = more(h)
        case 4:
            t = more(h, h)
            t["w_val"][-1] *= -1
            t["v"][-2:] = t["v"][-1] + torch.from_numpy(2048.0 * rng.integers(-2, 3, t["v"].shape[1:])).to(t["v"])
        case 5:
            t = more(h)
            t[str(rng.choice(["w_val", "w_out"]))][-1] = 0
            t["v"][-1] = torch.from_numpy(rng.integers(-3, 4, t["v"].shape[1:]) * rng.choice([1.0, 1024.0])).to(t["v"])
        case 6:
            t = more(h)
            t["w_val"][[h, -1]] *= 0.5
        case 7:
            for name in TENSORS[:5]:
                pad = (0, 0, 0, 1) if name == "w_key_pos" else (0, 1)
                t[name] = nn.functional.pad(t[name], pad, value=float(rng.choice([0, 0, 1])))
        case 8:
            names = [["w_qry"], ["w_key"], ["u"], ["w_qry", "w_key"]][int(rng.integers(4))]
            if silent := bool(rng.integers(2)):
                t = more(h)
                t["w_out"][-1] = 0
            for name in names:
                t[name][-1 if silent else pick()] = float(rng.choice([1e-3, 1.0]))
        case 9:
            t["v"][h, 1:] -= t["v"][h, :1] * 2 * float(rng.choice([1, -1, 0.5, 0.25, 0.49])) * int(rng.integers(0, 2))
        case 10:
            flat[place] = flat[place] * (1 + 2 * torch.finfo(flat.dtype).eps) if flat[place] else 2.0**-20
        case 11:
            name = str(rng.choice(["w_val", "w_out", "v", "w_key_pos"]))
            t[name][[h, pick()]] = t[name][[pick(), h]]
        case _:
            i, j = rng.choice(t["v"].shape[1], 2, replace=False)
            step = float(rng.choice([1, -2, 0.5]))
            t["w_key_pos"][:, i] += step * t["w_key_pos"][:, j]
            t["v"][:, j] -= step * t["v"][:, i]
    return t


def assert_honest(conv: Any, layer: MHSA, grid: tuple[int, ...], bound: float, within: float | None) -> str:
    """PROVED only if the functions agree, on the grid and all smaller ones; REFUTED only if they differ; no run exceeds a bound."""
    try:
        certificate = certify(conv, layer, grid=grid, input_bound=bound, within=within)
    except ValueError:
        return "refused"
    word = certificate.verdict.name
    if word == "PROVED" and within is None:
        for size in {grid, *islice(product(*(range(1, n + 1) for n in grid)), 30)}:
            try:
                output_size(Geometry.read(conv), size)
            except GridRefused:
                continue
            assert not exactly_differ(conv, layer, size), f"false PROVED on {size}"
    if word == "REFUTED" and certificate.counterexample is not None:
        assert exactly_differ(conv, layer, grid), "false REFUTED"
    if np.isfinite(certificate.bound).any():
        signs = np.random.default_rng(1).choice([-1.0, 1.0], (3, conv.in_channels, *grid))
        inputs = torch.from_numpy(bound * signs).to(conv.weight.dtype)
        with torch.no_grad():
            for layer.execution in EXECUTIONS:
                try:
                    attended = layer(inputs).double()
                except NotImplementedError:  # scores too coarse for the fused kernel, which refuses them
                    continue
                differences = (attended - conv(inputs).double()).abs().flatten(2).amax((0, 2)).numpy()
                assert (differences <= certificate.bound).all()
    return word


def search(examples: int, tokens: int) -> Counter[str]:
    counts: Counter[str] = Counter()

    @settings(max_examples=examples, phases=[Phase.generate])
    @given(convolutions(), st.data(), st.integers(0, 2**30))
    def attack(conv: Any, data: st.DataObject, seed: int):
        rng = np.random.default_rng([seed, counts.total()])  # hypothesis draws the same few seeds again and again
        grid = data.draw(sizes_for(conv, tokens=tokens))
        encoding, head_dim = str(rng.choice(["quadratic", "quadratic", "parabola"])), [None, "rank", 3][rng.integers(3)]
        layer = conv_to_mhsa(conv, encoding=encoding, head_dim=head_dim)
        tensors = {name: t.clone() for name, t in layer.state_dict().items()}
        for _ in range(rng.integers(1, 4)):
            tensors = scramble(tensors, rng)
        scrambled = MHSA(layer.geometry, MHSAWeights(**tensors), radix=layer.radix)
        bound, within = float(rng.choice([1.0, 0.1, 100.0])), [None, None, 1e-2, 1e3][rng.integers(4)]
        counts[assert_honest(conv, scrambled, grid, bound, within)] += 1

    attack()
    print("ATTACKS", dict(counts))
    return counts


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    ("examples", "tokens"), [(EXAMPLES, 30 if ORDINARY else 60), pytest.param(2000, 60, marks=pytest.mark.deep)]
)
def test_no_random_attack_obtains_a_false_verdict(examples: int, tokens: int):
    counts = search(examples, tokens)
    assert min(counts[word] for word in ("PROVED", "REFUTED", "UNDECIDED")) > 3
