"""Renders proof statements as LaTeX: words as text, mathematics in math mode.

The statements are plain Unicode for a terminal: "score(τ) − score(δ) = α‖n‖² for all δ".  A word is
mathematics if it contains a symbol, a digit or a single letter; neighbouring words form one
formula, so that ``e^(−α (N + 1))`` becomes one exponent.
"""

import re
from itertools import zip_longest

_SYMBOLS = {
    **dict(
        zip(
            "αβδεϑπστω",
            "alpha beta delta varepsilon vartheta pi sigma tau omega".split(),
            strict=True,
        )
    ),
    **dict(zip("ΔΠΣ", ("Delta", "prod", "sum"), strict=True)),
    **dict(
        zip("≤≥≠±·×⊗→…∞∈‖", "le ge ne pm cdot times otimes to dots infty in |".split(), strict=True)
    ),
}
_NAMES = {name: name for name in "alpha tau delta sum prod ln max".split()}
_NAMES |= {"theta": "vartheta", "epsilon": "varepsilon"}
_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"}
_IN_MATH = _SPECIAL | {
    "Ŵ": r"\hat{W}",
    "−": "-",
    "^": r"\hat{}",
    "~": r"\sim ",
    "\\": r"\backslash ",
}
_IN_WORDS = _SPECIAL | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
_IN_WORDS |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "“": "``", "”": "''"}
_SHARP = re.compile(r"[=+^_/<>|²−Ŵ]|[^\W\d_]\(|\d|" + "|".join(map(re.escape, _SYMBOLS)))
_OPERATOR = re.compile(r"[=+≤≥≠<>∈]|:=|−$")
_WORD = re.compile(r"[A-Za-z]+|\d+|.", re.DOTALL)
_ENDS = ".,;:"


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
    return words.translate(str.maketrans(_IN_WORDS))


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
    words = _WORD.findall(formula)
    parts: list[str] = []
    scripts: set[str] = set()  # scripts of the last base: TeX allows one of each
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if (
            word in "^_"
            and place < len(words)
            and not words[place].isspace()
            and words[place] not in "^_²'"
        ):
            script, place = _script(words, place)
        elif word in "²'":
            word, script = "^", "2" if word == "²" else r"\prime"
        else:
            parts.append(r"\, " if word == " " and _apart(words, place) else _symbol(word))
            if not word.isspace():
                scripts.clear()
            continue
        if word in scripts:
            parts.append("{}")
            scripts.clear()
        scripts.add(word)
        parts.append(f"{word}{{{script}}}")
    return "".join(parts)


def _apart(words: list[str], place: int) -> bool:
    """Whether the space before this place denotes a product, rather than adjoining an operator."""
    return not any(
        word in "=+−≤≥≠<>∈→±·×⊗:,;"
        for word in (words[place - 2 : place - 1] + words[place : place + 1])
    )


def _script(words: list[str], place: int) -> tuple[str, int]:
    """The LaTeX of the exponent or index that starts here, and the place after it."""
    closing = {"(": ")", "{": "}"}.get(words[place])
    depth = 0
    for end in range(place, len(words)) if closing else ():
        depth += (words[end] == words[place]) - (words[end] == closing)
        if depth == 0:
            return _math("".join(words[place + 1 : end])), end + 1
    return _symbol(words[place], shortest=2), place + 1


def _symbol(word: str, shortest: int = 3) -> str:
    """One symbol; at least ``shortest`` letters form a name, fewer are separate variables."""
    name = _SYMBOLS.get(word) or _NAMES.get(word)
    if name:
        return f"\\{name} "
    return (
        f"\\mathrm{{{word}}}"
        if len(word) >= shortest and word.isalpha()
        else _IN_MATH.get(word, word)
    )
