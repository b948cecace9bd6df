"""Writes what is said of the results: the answer of docs/learned.md, with its figures and conclusions,
and the sentences that docs/claims.md quotes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from textwrap import wrap
from typing import Any

import verify
from examples.learned.results import nulls, rows, table
from examples.learned.variants import VARIANTS

ANSWER = """\
- **Local first.** Away from the border the first layer becomes nearly a convolution of nine taps, at scattered shifts:
  {quadratic[1][near]:sum} of its {quadratic[1][heads]:sum} heads end near an integer shift, where {quadratic[1][before near]:sum}
  began so and chance is 7. It ends at {quadratic[1][anywhere]} from nine taps, random heads at {quadratic[1][anywhere_sharp]}, and
  at {quadratic[1][middle 3]:span} from any centred 3 × 3 kernel. Over the three seeds it is nearer than random heads (p =
  {quadratic[1].chance:.2g}); in seed 0 alone {seed_0[1][anywhere_sharp_nearer]:%} of these are as near. Three other settings (Σ,
  16 heads, CutMix; one seed each) end at {others[1][anywhere]:span}, random heads at {others[1][anywhere_sharp]:span}, and are not
  told apart.
- **Global last.** The keys of a head lie within {quadratic[1][width]:mean} tokens (root mean square) of their mean in the first
  layer, {quadratic[5][width]:mean} in the fifth and {quadratic[6][width]:mean} in the sixth ({quadratic[1][before width]:mean}
  before). These two end at {quadratic[5][anywhere]:span} and at {quadratic[6][anywhere]:span} from nine taps, further than they
  began; random heads are at {quadratic[5][anywhere_sharp]:span} and {quadratic[6][anywhere_sharp]:span}.
- **In between**: that layers 2 to 4 are nearer than random heads is not shown.
- **Settling on shifts needs no labels that mean anything; global last does not appear without them.** With the train labels in a
  random order (three seeds, {shuffled.scores:span} %) nothing is learned, and {shuffled[1 to 6][sharp]:sum} of the
  {shuffled[1 to 6][heads]:sum} heads become sharp, in all layers, all of them on shifts (the nine heads of the last layer on two
  to four a seed). All layers but the third end nearer than random heads: the first at {shuffled[1][anywhere]}, random heads at
  {shuffled[1][anywhere_sharp]} (p = {shuffled[1][anywhere_sharp_nearer]:.2g}). So a convolution in the first layer is by itself no
  sign that one was useful. With the right labels layers 3 to 6 hardly settle: {quadratic[3 to 6][sharp]:sum} of their
  {quadratic[3 to 6][heads]:sum} heads become sharp, {quadratic[3 to 6][near]:sum} end near a shift (chance 27).
- **Sharp heads mostly stand on shifts**: {quadratic[1 to 6][sharp_near]:sum} of {quadratic[1 to 6][sharp]:sum}, and
  {moving[1 to 6][sharp_near]:sum} of {moving[1 to 6][sharp]:sum} in all rows from random centres that move, with the right labels.
  A layer that is taught a convolution and driven to be sharp has its heads half-way between shifts instead
  ([taught.md](taught.md)).
- **Sharpening alone takes the first layer most of the way, to where random heads are**, as it nearly must, since frozen centres
  are random: if α learns and centres are frozen, it goes from {frozen-centres[1][before anywhere]} to
  {frozen-centres[1][anywhere]} (seeds 0 and 1), random heads are at {frozen-centres[1][anywhere_sharp]}. If centres move too, it
  ends nearer in both seeds, partly as heads become sharper. With the same α and W_h at its first centres it would be at
  {quadratic[1][anywhere_first_centres]}: by this rough control moving adds little in seed 0, more in the two others.
- **A start as a convolution does not last in the deeper layers.** From the local start (three seeds) layers 3 to 6 end at
  {local[3 to 6][anywhere]:span} (random heads {local[3 to 6][anywhere_sharp]:span}), the first at {local[1][anywhere]:span}
  ({local[1][anywhere_sharp]:span}), as nine other taps ({local[1][middle 3]:span} from any centred 3 × 3 kernel, where it began at
  {local[1][before middle 3]:mean}), the second at {local[2][anywhere]} ({local[2][anywhere_sharp]}). The same α and W_h at the
  first centres would put these two layers nearer in each seed (once hardly): moving takes both away. In three other starts from a
  kernel (one seed each) no layer is shown to be nearer than random heads, and in one the first is further from nine taps than it
  began ({local-scaled[1][before anywhere]} → {local-scaled[1][anywhere]}; random heads {local-scaled[1][anywhere_sharp]}).
- **Learning how sharply and where to look gains six points of accuracy in one seed and two in the other**: frozen heads reach
  {frozen.scores} % (seeds 0 and 1), those that learn α alone {frozen-centres.scores} %, and those that learn both
  {quadratic.scores} % (seeds 0 to 2). Moving gains in seed 0 alone. Seeds alone make as much of a difference (the
  local start reaches {local.scores:span} %): two points between single runs say little.
- **At the border layers without padding tokens are mostly no convolutions, trained or not**: heads that look past the edge read
  it. From the paper's start all six are {quadratic[1 to 6][over all]:span} from any convolution over all outputs (before:
  {quadratic[1 to 6][before over all]:span}; no null was drawn).
- **On digits** (ten seeds, four rates) heads of the first four layers move to the lattice too (at × 100
  {digits-100[1 to 4][near]:sum} of {digits-100[1 to 4][heads]:sum}, where {digits-100[1 to 4][before near]:sum} began so), but no
  layer of the paper's start is shown to be nearer than random heads at any rate.

So local first and global last are found here for the quadratic encoding with AdamW at × 25. From the paper's start the fifth layer
spreads and also looks further, as the paper has it (a mean key is {quadratic[5][reach]:mean} tokens away,
{quadratic[1][reach]:mean} in the first layer); the sixth spreads alone ({quadratic[6][reach]:mean}). With Σ or padding tokens
(three rows, one seed each) both look further. The learned relative embedding (one seed, no null) looks far already in the first
layer (a mean key is {relative[1][reach]} tokens away, the least of the six) and furthest in the last ({relative[6][reach]}). In
six epochs of the paper's own SGD (one seed, {sgd.scores} %) heads hardly move, and no layer is told apart from random heads. That
training prefers convolutions *for what they compute* is not shown.
"""

OTHERS = ("covariance", "quadratic-16", "quadratic-cutmix")
"""Other settings of random centres that move."""
KERNELS = ("from-conv", "local-scaled", "local-padded")
"""Other starts from a kernel."""


class Figures(list[Any]):
    """Numbers in a sentence: each of them, "span", "sum", "mean", or "%" of the first.

    >>> f"{Figures([0.11, 0.02, 0.07])}; {Figures([0.11, 0.02]):span}; {Figures([5, 6]):sum}"
    '0.11, 0.02 and 0.07; 0.02 to 0.11; 11'
    """

    @property
    def mean(self) -> float:
        """Their mean."""
        return fmean(self)

    def __format__(self, form: str) -> str:
        together = {
            "span": lambda: f"{min(self):.2f} to {max(self):.2f}",
            "sum": lambda: str(sum(self)),
            "mean": lambda: f"{self.mean:.2f}",
            "%": lambda: f"{100 * self[0]:.0f} %",
        }
        if form in together:
            return together[form]()
        return " and ".join(", ".join(f"{x:{form or '.2f'}}" for x in self).rsplit(", ", 1))


@dataclass(frozen=True)
class Layers:
    """Layers, numbered from 1, of the runs of a start."""

    runs: list[dict[str, Any]]
    layers: Sequence[int] = rows.LAYERS

    def __getitem__(self, name: str | int) -> Any:
        """Some of the layers, as in 3 or "3 to 6"; or a measurement, which may be one "before"
        training, in each layer of each run.
        """
        if str(name)[0].isdecimal():
            first, _, last = str(name).partition(" to ")
            return Layers(self.runs, range(int(first), int(last or first) + 1))
        when = "untrained" if str(name).startswith("before ") else "layers"
        name = str(name).removeprefix("before ")
        each = [(run, n - 1, run[when][n - 1]) for n in self.layers for run in self.runs]
        of = {
            "near": lambda run, n, layer: round(layer["near"] * layer["heads"]),
            "over all": lambda run, n, layer: layer["by_size"][-1],
        }.get(name, lambda run, n, layer: table.number_of(run, when, n, name))
        return Figures(of(*one) for one in each)

    @property
    def scores(self) -> Figures:
        """Test accuracies in percent."""
        return Figures(100 * run["test_accuracy"] for run in self.runs)

    @property
    def chance(self) -> float:
        """The chance that random centres are as near as the first of the layers in all seeds."""
        return nulls.verdict(self.runs, self.layers[0] - 1)[1]

    @property
    def words(self) -> list[str]:
        """What each layer is called beside random heads: "nearer", "further" or ""."""
        return [nulls.verdict(self.runs, n - 1)[0] for n in self.layers]

    def change(self, since: str) -> list[float]:
        """How much further than that each layer ends from nine taps, in each run."""
        return [end - start for end, start in zip(self["anywhere"], self[since], strict=True)]


def starts_of(
    cifar: rows.Results,
    sgd: rows.Results,
    shuffled: rows.Results,
    digits: Mapping[int, rows.Results],
) -> dict[str, Layers]:
    """What the answer names: the starts on CIFAR-10, groups of them, and other runs of the paper's."""
    groups = {
        "others": [cifar[name][0] for name in OTHERS],
        "moving": [run for name in ("quadratic", *OTHERS) for run in cifar[name]],
        "seed_0": cifar["quadratic"][:1],
        "sgd": sgd["quadratic"],
        "shuffled": shuffled["quadratic"],
        **{f"digits-{rate}": results["quadratic"] for rate, results in digits.items()},
    }
    return {name: Layers(runs) for name, runs in (cifar | groups).items()}


def of_the_papers_start(of: Mapping[str, Layers]) -> dict[str, bool]:
    """What the answer concludes on the paper's start, and whether it is so."""
    paper, offsets, sgd = of["quadratic"], of["relative"]["reach"], of["sgd"]
    reach = [paper[n]["reach"].mean for n in rows.LAYERS]
    digits = [of[f"digits-{rate}"].words for rate in rows.RATES]
    wide = [of[name] for name in ("covariance", "from-conv", "local-padded")]
    return {
        "layer 1 is nearer": paper.words[0] == "nearer",
        "but not in seed 0": of["seed_0"].words[0] == "",
        "other settings are not told apart": not any(of[name].words[0] for name in OTHERS),
        "layers 5 and 6 end further": min(paper["5 to 6"].change("before anywhere")) > 0,
        "layers 2 to 4 are not nearer": "nearer" not in paper["2 to 4"].words,
        "on digits no layer is nearer": not any("nearer" in words for words in digits),
        "layer 5 looks further, layer 6 does not": reach[4] > reach[0] + 1 > reach[5],
        "with Σ or padding both do": all(
            min(one["5 to 6"]["reach"]) > 3 * one["reach"][0] for one in wide
        ),
        "offsets look furthest last": (offsets[0], offsets[-1]) == (min(offsets), max(offsets)),
        "with SGD heads hardly move": max(sgd["moved"]) < 0.7 and not any(sgd.words),
    }


def of_controls(of: Mapping[str, Layers]) -> dict[str, bool]:
    """What the answer concludes on controls and on other starts, and whether it is so."""
    names = ("quadratic", "frozen", "frozen-centres", "shuffled", "local")
    paper, frozen, alone, mixed, local = (of[name] for name in names)
    by_moving = paper[1].change("anywhere_first_centres")
    ends = zip(paper[1]["anywhere"][:2], alone[1]["anywhere"], strict=True)
    gains = [paper.scores[n] - frozen.scores[n] for n in (0, 1)]
    gains_by_moving = [paper.scores[n] - alone.scores[n] for n in (0, 1)]
    left = [of[name][1].change("before anywhere")[0] > 0 for name in KERNELS]
    return {
        "random labels teach nothing": max(mixed.scores) < 12,
        "their sharp heads are on shifts": mixed["sharp"] == mixed["sharp_near"],
        "and in all layers": min(mixed["sharp"]) > 0,
        "the last on two to four": {*mixed[6]["distinct"]} == {2, 4},
        "all but the third are nearer": mixed.words == ["nearer"] * 2 + [""] + ["nearer"] * 3,
        "sharpening alone leads to random heads": not any(alone.words),
        "moving too ends nearer": all(near < far for near, far in ends),
        "it adds little in seed 0": by_moving[0] > -0.02 > max(by_moving[1:]),
        "moving leaves the local start": min(local["1 to 2"].change("anywhere_first_centres")) > 0,
        "one other start leaves it further": left == [False, True, False],
        "none of these is nearer": not any("nearer" in of[name].words for name in KERNELS),
        "learning gains six and two points": [*map(round, gains)] == [6, 2],
        "moving gains in seed 0 alone": gains_by_moving[0] > 2 and abs(gains_by_moving[1]) < 0.05,
    }


def answer(of: Mapping[str, Layers]) -> list[str]:
    """The answer, in lines as long as those of its page.

    Raises:
        ValueError: a conclusion no longer holds.
    """
    concluded = of_the_papers_start(of) | of_controls(of)
    if wrong := [sentence for sentence, holds in concluded.items() if not holds]:
        raise ValueError(f"the results no longer say: {'; '.join(wrong)}")
    lines = []
    for part in re.split(r"\n(?=- |\n)", ANSWER.format_map(of)):
        text, indent = " ".join(part.split()), "  " * part.startswith("- ")
        lines += [""] * part.startswith("\n")
        lines += wrap(text, 140, subsequent_indent=indent, break_on_hyphens=False)
    return lines


def constants(
    of_cifar: rows.Results, shuffled: rows.Results, digits: rows.Results
) -> dict[str, str]:
    """What claims quote of the tables by name, all of the paper's start but for
    ``DIGITS_REACH_LOCAL``.
    """
    cifar = of_cifar["quadratic"]
    row = [rows.Row(VARIANTS["quadratic"].label, rows.SHOWN, "quadratic", cifar)]
    _, _, _, *chances = _cells(rows.compared(row))
    _, _, _, sharp, *lattice = _cells(rows.lattice(row))
    _, _, _, mixed, *_ = _cells(rows.lattice([row[0]._replace(runs=shuffled["quadratic"])]))
    first, last = (layer - 1 for layer in rows.ENDS)

    def ends(runs: Sequence[dict[str, Any]], name: str) -> str:
        return (
            " in layer 1 and ".join(rows.paired(runs, layer, name) for layer in (first, last))
            + " in layer 6"
        )

    return {
        "CIFAR_RUNS": f"seeds {rows.seeds(cifar)}",
        "DIGITS_RUNS": f"seeds {rows.seeds(digits['quadratic'])}",
        "CHANCES": ", ".join(chance.replace("*", "") for chance in chances),
        "SHARP": sharp,
        "LATTICE": ", ".join(lattice),
        "SHUFFLED": mixed,
        "PEAK_1": rows.paired(cifar, first, "peak"),
        "PEAK_6": rows.paired(cifar, last, "peak"),
        "REACH": ", ".join(rows.paired(cifar, layer - 1, "reach") for layer in rows.LAYERS),
        "WIDTH": ", ".join(rows.paired(cifar, layer - 1, "width") for layer in rows.LAYERS),
        "OFFSETS": ", ".join(
            rows.paired(of_cifar["relative"], layer - 1, "anywhere") for layer in rows.LAYERS
        ),
        "RESNET": table.mean_and_deviation(
            [run["test_accuracy"] for run in of_cifar["resnet18"]], scale=100
        ),
        "ACCURACY": table.mean_and_deviation([run["test_accuracy"] for run in cifar], scale=100),
        "DIGITS_PEAK_1": rows.paired(digits["quadratic"], first, "peak"),
        "DIGITS_PEAK_6": rows.paired(digits["quadratic"], last, "peak"),
        "DIGITS_REACH": ends(digits["quadratic"], "reach"),
        "DIGITS_REACH_LOCAL": ends(digits["local"], "reach"),
    }


def _cells(lines: Sequence[str]) -> list[str]:
    """The cells of the last row of a table."""
    return [cell.strip() for cell in lines[-1].strip("|").split("|")]


def module(cifar: rows.Results, shuffled: rows.Results, digits: rows.Results) -> str:
    """The text of a module of these constants."""
    lines = [
        '"""What claims quote of docs/learned.md; ``python -m examples.learned.results.published write`` writes it."""',
        "",
    ]
    for name, value in constants(cifar, shuffled, digits).items():
        parts = [f'"{part}"' for part in wrap(value, 110, drop_whitespace=False)]
        lines += (
            [f"{name} = {parts[0]}"]
            if len(parts) == 1
            else [f"{name} = (", *(f"    {one}" for one in parts), ")"]
        )
    return "\n".join(lines) + "\n"


def with_claims(page: str) -> str:
    """The page of the claims with its tables as they are now, in a process that has not judged them
    yet.
    """
    start, end = "<!-- made by code -->\n", "\n<!-- end -->"
    before, rest = page.split(start)
    return before + start + verify.claims().markdown() + end + rest.partition(end)[2]
