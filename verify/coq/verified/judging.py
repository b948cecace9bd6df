"""Runs the verified checker on a layer: the questions that a certificate raises, and the program's
answer.
"""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from verify.coq.verified import export
from verify.recheck.grids import sizes_of
from verify.recheck.layer_pair import LayerPair
from verify.recheck.strict_input import sha256_of
from verify.verdict import escaped, exactly, from_above

ARITHMETIC = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
}
"""The format in which sums are formed, before a final rounding to half precision."""

FORMATS = {"float32": (-149, 24), "float64": (-1074, 53)}
"""e_min and p: floats are m·2^e with |m| < 2^p and e ≥ e_min."""

SOFT = "as run by default, if nothing overflows and float64's exponential errs by two units in the last place at most"

LONGEST = 3600
"""Time limit in seconds for one layer."""


class Question(NamedTuple):
    """A question, and its meaning in words."""

    numbers: str
    claim: str


class Answer(NamedTuple):
    """The verified checker's answer for one layer: accepted, refuted, or neither."""

    name: str
    accepted: bool
    sentence: str
    refuted: bool = False

    def __str__(self) -> str:
        shown = escaped(self.name) or "the layer"
        return f"{shown}: {'REFUTED' if self.refuted else 'ACCEPTED' if self.accepted else 'not accepted'}: {self.sentence}"


def questions_of(pair: LayerPair, reals: bool = False) -> list[Question]:
    """The certificate's claim about a pair, as questions that Coq defines.

    "The same function" gives two: taps and biases are equal, so the layer tends to the convolution
    as α → ∞; and at its own α every head is one-hot in floating point, so the layer is that limit.
    The certified bound gives a third, for every order of the products if ``_judged_in_floats``
    accepts the layer, else for the default one, which shifts tokens.  "A difference within T" is
    asked of the floats that run by default, or over the ``reals``.  With the parabola, all
    questions concern inputs up to the certified size.
    """
    stated = pair.stated
    up_to = ""
    if pair.radix is not None:
        up_to = f" on inputs up to {stated.grid}"
    inputs = f"for |x| ≤ {exactly(stated.input_bound)}{up_to}"
    name = ARITHMETIC[stated.dtype]
    form = FORMATS[name]
    if stated.within is not None:
        what = f"a difference of at most {exactly(stated.within)} {inputs}"
        if reals:
            question = export.within(stated.input_bound, stated.within)
            return [Question(question, f"over the reals {what}")]
        question = export.soft(*form, stated.input_bound, stated.within, stated.grid)
        return [Question(question, f"in {name} {what} on inputs up to {stated.grid}, {SOFT}")]
    questions = [
        Question(export.SAME, f"the same function in the limit α → ∞{up_to}"),
        Question(export.sharp(*form), f"every head one-hot in {name}{up_to}"),
    ]
    most = float(stated.parts["bound"].max(initial=0.0))
    if stated.verdict == "PROVED":
        kind, order = (2, ", or last") if _judged_in_floats(pair) else (5, "")
        what = f"in {name} a difference of at most {from_above(most)} {inputs}, with W_val W_out first, as by default{order}"
        questions.append(Question(export.floats(*form, stated.input_bound, most, kind), what))
    return questions


@np.errstate(over="ignore", invalid="ignore")
def _judged_in_floats(pair: LayerPair) -> bool:
    """Whether to ask for the floating-point bound in every order: the encoding is quadratic,
    every τ is an integer, and all heads share one α, a power of two.
    """
    c = np.einsum("hk,hkp->hp", pair.a["v"], pair.a["w_key_pos"])[pair.carrying]  # −α(1, −2τ)
    if pair.radix is not None or not len(c):
        return False
    alike = (c[:, 0] == c[0, 0]).all() and np.frexp(c[0, 0])[0] == -0.5
    return bool(alike and not np.mod(c[:, 1:], 2 * c[0, 0]).any())


def refutation_of(pair: LayerPair) -> list[Question]:
    """The certificate's counterexample to "the same function" as a question, if there is one with
    dyadic numbers.
    """
    stated = pair.stated
    counter = stated.counterexample
    if (
        stated.verdict != "REFUTED"
        or stated.within is not None
        or counter is None
        or "shapes" in counter
    ):
        return []
    try:
        question = export.refuted(stated.grid, counter["output"], counter["input"])
    except ValueError:
        return []
    return [
        Question(
            question,
            f"not the same function in the limit α → ∞: output {counter['output']} differs",
        )
    ]


class Judge:
    """The verified checker, applied to the layers of two weight files.

    Args:
        program: the program that ``python -m verify coq build`` built.
        conv_path, mhsa_path: the weight files, whose digests are part of every text and every
            answer.

    Attributes:
        answers: one for each layer asked about.
    """

    def __init__(self, program: Path, conv_path: str | Path, mhsa_path: str | Path):
        self.program = program
        self.digests = [sha256_of(conv_path), sha256_of(mhsa_path)]
        self.answers: list[Answer] = []

    def __call__(self, pair: LayerPair) -> None:
        """Ask about one layer."""
        stated = pair.stated
        sized = pair.radix is not None or stated.within is not None
        if sized and sizes_of(pair.conv, stated.grid) is None:
            what = f"no input of size {stated.grid} has outputs"
            self.answers.append(Answer(stated.name, False, what))
            return
        refutation = refutation_of(pair)
        answer = self._answer(pair, refutation or questions_of(pair))
        if stated.within is not None and not answer.accepted:
            answer = self._answer(pair, questions_of(pair, reals=True))
        self.answers.append(
            answer._replace(accepted=False, refuted=answer.accepted) if refutation else answer
        )

    @property
    def accepts(self) -> bool:
        """Whether it was asked about some layer and accepted all."""
        return bool(self.answers) and all(answer.accepted for answer in self.answers)

    def __str__(self) -> str:
        accepted = sum(answer.accepted for answer in self.answers)
        theorem = "theorem check_text_sound, if no float overflows"
        head = f"verified checker ({theorem}): {accepted} of {len(self.answers)} layers accepted"
        return "\n".join([head, *map(str, self.answers)])

    def _answer(self, pair: LayerPair, questions: Sequence[Question]) -> Answer:
        stated = pair.stated
        name = stated.name
        pieces = export.text(
            self.digests,
            [q.numbers for q in questions],
            stated.geometries,
            pair.weight,
            pair.bias,
            pair.a,
            stated.grid,
        )
        with tempfile.TemporaryDirectory(prefix="verified-") as folder:
            path = Path(folder) / "layer.txt"
            with path.open("w", encoding="ascii") as file:
                file.writelines(pieces)
            try:
                done = subprocess.run(
                    [self.program, path],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=LONGEST,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return Answer(name, False, f"the program gave no answer: {error}")
        verdict, *words = done.stdout.split() or [""]
        if (done.returncode, verdict) == (0, "accepted") and words == [
            str(int(digest, 16)) for digest in self.digests
        ]:
            return Answer(name, True, "; ".join(q.claim for q in questions))
        if (done.returncode, verdict) == (1, "rejected") and len(words) == len(questions):
            doubted = [q.claim for q, word in zip(questions, words, strict=True) if word != "true"]
            return Answer(name, False, f"not shown: {'; '.join(doubted)}")
        what = " ".join((done.stdout + done.stderr).split())[:200]
        return Answer(
            name, False, f"the program gave no answer (exit code {done.returncode}): {what}"
        )
