"""Renders proof statements as LaTeX: words as text, mathematics in math mode.

The statements are plain Unicode for a terminal: "score(τ) − score(δ) = α‖n‖² for all δ".  A word is
mathematics if it contains a symbol, a digit or a single letter; neighbouring words form one
formula, so that ``e^(−α (N + 1))`` becomes one exponent.  It is for these statements, whose brackets
are nested at most three deep, and whose symbols have one exponent and one index at most.
"""

import re
from itertools import zip_longest

_SYMBOLS = dict(
    zip(
        "αβδεϑπστωΔΠΣ≤≥≠±·×⊗→…∞∈‖",
        "alpha beta delta varepsilon vartheta pi sigma tau omega Delta prod sum "
        "le ge ne pm cdot times otimes to dots infty in |".split(),
        strict=True,
    )
)
_NAMES = {name: name for name in "alpha tau delta sum prod ln max".split()}
_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"}
_IN_MATH = _SPECIAL | {"Ŵ": r"\hat{W}", "−": "-", "²": "^{2}", "'": r"^{\prime}"}
_IN_MATH |= {symbol: f"\\{name} " for symbol, name in (_SYMBOLS | _NAMES).items()}
_SHARP = re.compile(r"[=+^_/<>|²−Ŵ]|[^\W\d_]\(|\d|" + "|".join(map(re.escape, _SYMBOLS)))
_OPERATOR = re.compile(r"[=+≤≥≠<>∈]|:=|−$")
_ENDS = ".,;:"
_BESIDE = "=+−≤≥≠<>∈→±·×⊗:,;"
_PIECE = re.compile(
    r"[\^_](?:\((?P<round>(?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)|{(?P<curly>[^{}]*)}|(?P<word>[A-Za-z]+|\d+|.))"
    rf"|(?P<product>(?<![{_BESIDE}]) (?![{_BESIDE}]))|[A-Za-z]+|."
)
"""A script, in brackets or not; the space of a product, beside no operator; or a symbol."""


def text(statement: str) -> str:
    """A statement as LaTeX text, with its mathematics in math mode."""
    words = statement.split()
    spans: list[tuple[bool, str]] = []
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        after_words = not (spans and spans[-1][0])
        is_math = _is_math(word, following, after_words)
        if spans and spans[-1][0] == is_math and not (is_math and _ends(spans[-1][1])):
            spans[-1] = is_math, f"{spans[-1][1]} {word}"
        else:
            spans.append((is_math, word))
    return " ".join(_set(span) if is_math else escaped(span) for is_math, span in spans)


def _ends(span: str) -> bool:
    """Whether a formula ends here: at a comma or colon outside brackets."""
    return span[-1] in _ENDS and all(
        span.count(left) == span.count(right) for left, right in ("()", "[]", "{}")
    )


def escaped(words: str) -> str:
    """Words as LaTeX text, with special characters escaped."""
    return words.translate(str.maketrans(_SPECIAL))


def _is_math(word: str, following: str, after_words: bool) -> bool:
    core = word.strip("()[],.;:")
    if core.isalpha() and following in ("+", "−"):  # "query + τ"
        return True
    if core.isdecimal() and after_words and not _OPERATOR.match(following):  # "Lemma 1"
        return False
    if core == "a":  # the article, unless next to an operator
        return word != "a" or bool(_OPERATOR.match(following))
    return (len(core) == 1 and core.isalnum()) or ("'s" not in word and bool(_SHARP.search(word)))


def _set(span: str) -> str:
    body = span.rstrip(_ENDS)
    return f"\\({_math(body)}\\){span[len(body) :]}"


def _math(formula: str) -> str:
    """Plain Unicode mathematics as LaTeX; an exponent or index is a word or text in brackets or
    braces.
    """
    return _PIECE.sub(_piece, formula)


def _piece(match: re.Match[str]) -> str:
    piece = match[0]
    script = match["round"] or match["curly"]
    if script:
        return f"{piece[0]}{{{_math(script)}}}"
    if match["word"]:
        return f"{piece[0]}{{{_symbol(match['word'], shortest=2)}}}"
    return r"\, " if match["product"] else _symbol(piece)


def _symbol(word: str, shortest: int = 3) -> str:
    """One symbol; at least ``shortest`` letters form a name, fewer are separate variables."""
    if word not in _IN_MATH and word.isalpha() and len(word) >= shortest:
        return f"\\mathrm{{{word}}}"
    return _IN_MATH.get(word, word)
