"""Draw docs/figures/walk.svg again:  python docs/walk.py --write [FILE]

One query walks over a digit of eight by eight pixels; nine heads follow it, each at its own shift; convolution and attention fill
in beside each other, and their difference.  Everything is computed by the layers: what a head looks at is its row of attention
probabilities, and the difference is of the two outputs.  The file moves by itself (SMIL), without scripts.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import construct
import verify

FILE = Path(__file__).parent / "figures/walk.svg"
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#7f5539", "#56b4e9", "#c9a800", "#d55e00", "#7a68c8")
"""One a head, in the order of the kernel's positions."""
SIDE, STEP = 8, 0.28
"""Pixels of the image along each axis, and seconds that the query stays at each of them."""
CELL, SMALL, OUT = 20, 6, 14
"""Sides of a pixel in the image, in a head's map and in an output, in units of the drawing."""
DIGIT = 12
"""The digit's number among scikit-learn's."""


def layers() -> tuple[Tensor, nn.Conv2d, construct.MHSA]:
    """A digit, (1, 1, 8, 8), a convolution that sees edges, and its attention."""
    x = torch.tensor(load_digits().images[DIGIT], dtype=torch.float32).view(1, 1, SIDE, SIDE)
    conv = nn.Conv2d(1, 1, 3, padding=1, bias=False).requires_grad_(False)
    conv.weight.copy_(torch.tensor([[1.0, 2.0, 1.0], [0.0, 0.0, 0.0], [-1.0, -2.0, -1.0]]))
    return x, conv, construct.conv_to_mhsa(conv)


def grey(value: float) -> str:
    """From 0, white, to 1, nearly black."""
    return "#" + f"{round(250 - 215 * value):02x}" * 3


def signed(value: float) -> str:
    """From −1, orange, over white to 1, blue."""
    end = (0, 95, 150) if value > 0 else (200, 90, 0)
    return "#" + "".join(f"{round(250 + (part - 250) * abs(value)):02x}" for part in end)


def pixels(colours: Iterable[str], columns: int, cell: int) -> str:
    """Squares in rows; runs of one colour in a row become one rectangle."""
    rows, runs = list(colours), []
    for start in range(0, len(rows), columns):
        row, begin = rows[start : start + columns], 0
        for end in range(1, columns + 1):
            if end == columns or row[end] != row[begin]:
                place = f'x="{begin * cell}" y="{start // columns * cell}"'
                runs.append(f'<rect {place} width="{(end - begin) * cell}" height="{cell}" fill="{row[begin]}"/>')
                begin = end
    return "".join(runs)


def moving(attribute: str, values: Iterable[object]) -> str:
    """An attribute that takes these values one after another, for ever; a place to stand at, (x, y), is a translation."""
    given = list(values)
    kind = "animateTransform" if attribute == "transform" else "animate"
    more = ' type="translate"' if attribute == "transform" else ""
    listed = ";".join(f"{value[0]} {value[1]}" if isinstance(value, tuple) else str(value) for value in given)
    return (
        f'<{kind} attributeName="{attribute}"{more} calcMode="discrete" dur="{STEP * SIDE**2:g}s" '
        f'repeatCount="indefinite" values="{listed}"/>'
    )


def group(x: float, y: float, content: str, more: str = "") -> str:
    """A group at a place."""
    return f'<g transform="translate({x:g} {y:g})"{more}>{content}</g>'


def words(x: float, y: float, text: str, kind: str = "") -> str:
    """A line of text that begins at a place, or is centred there."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{text}</text>'


def drawing() -> str:
    """The whole file."""
    x, conv, layer = layers()
    with torch.no_grad():
        outputs = {"convolution": conv(x)[0, 0], "attention": layer(x)[0, 0]}
        maps = layer.attention_probabilities(x).squeeze(0)  # (heads, queries, keys), or with the axes of both apart
    wide = SIDE + 2  # with the zeros of the padding
    maps = maps.reshape(len(COLOURS), SIDE**2, wide**2)
    assert set(maps.unique().tolist()) == {0.0, 1.0}  # one-hot: a head looks at one key
    keys = [[divmod(int(key), wide)[::-1] for key in head] for head in maps.argmax(-1)]  # (x, y) on the padded grid
    difference = (outputs["convolution"] - outputs["attention"]).abs()
    assert float(difference.max()) == 0.0  # small integers: every sum is exact
    assert verify.certify(conv, layer, grid=(SIDE, SIDE), input_bound=16.0).verdict.name == "PROVED"
    queries = [(q % SIDE, q // SIDE) for q in range(SIDE**2)]

    image = f'<rect x="{-CELL}" y="{-CELL}" width="{wide * CELL}" height="{wide * CELL}" class="pad"/>'
    image += pixels((grey(value / 16) for value in x.flatten().tolist()), SIDE, CELL)
    for head, colour in enumerate(COLOURS):
        places = [((i - 1) * CELL, (j - 1) * CELL) for i, j in keys[head]]
        box = f'<rect x="1.5" y="1.5" width="{CELL - 3}" height="{CELL - 3}" fill="none" stroke="{colour}" stroke-width="3"/>'
        image += f"<g>{box}{moving('transform', places)}</g>"

    heads = ""
    for head, colour in enumerate(COLOURS):
        places = [(i * SMALL, j * SMALL) for i, j in keys[head]]
        back = f'<rect width="{wide * SMALL}" height="{wide * SMALL}" class="map"/>'
        key = f'<rect width="{SMALL}" height="{SMALL}" fill="{colour}">{moving("transform", places)}</rect>'
        edge = (
            f'<rect width="{wide * SMALL}" height="{wide * SMALL}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        heads += group(head % 3 * 68, head // 3 * 68, back + key + edge)

    # What is shown of an output: the rows above the query's, and its own row up to it.
    above = f'<rect width="{SIDE * OUT}" height="0">{moving("height", (j * OUT for _, j in queries))}</rect>'
    begun, row = ((i + 1) * OUT for i, _ in queries), (j * OUT for _, j in queries)
    own = f'<rect height="{OUT}" width="{OUT}">{moving("width", begun)}{moving("y", row)}</rect>'
    shown = f'<clipPath id="shown">{above}{own}</clipPath>'
    top = float(outputs["convolution"].abs().max())
    results = ""
    for number, (name, output) in enumerate(outputs.items()):
        body = f'<rect width="{SIDE * OUT}" height="{SIDE * OUT}" class="map"/>'
        body += (
            f'<g clip-path="url(#shown)">{pixels((signed(v / top) for v in output.flatten().tolist()), SIDE, OUT)}</g>'
        )
        results += group(number * 134, 0, words(SIDE * OUT / 2, -9, name, "mid") + body)
    results += group(
        272,
        0,
        words(SIDE * OUT / 2, -9, "difference", "mid")
        + f'<rect width="{SIDE * OUT}" height="{SIDE * OUT}" class="map"/>'
        + words(SIDE * OUT / 2, SIDE * OUT / 2 + 9, f"{difference.max():g}", "big"),
    )

    style = (
        "text{font:15px system-ui,sans-serif;fill:#333}.mid{text-anchor:middle}.big{text-anchor:middle;font-size:26px}"
        ".small{font-size:13px;fill:#666}.pad{fill:#e9e9e9}.map{fill:#f4f4f4}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.small{fill:#aaa}.pad{fill:#3a3a3a}.map{fill:#2b2b2b}}"
    )
    title = (
        "One query walks over an image; nine attention heads follow it, each at its own shift; convolution and attention "
        "give the same output."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 262" role="img" aria-label="{title}"><title>{title}</title>'
        f"<style>{style}</style><defs>{shown}</defs>"
        + words(14, 26, "one query, nine heads")
        + group(34, 60, image)
        + words(14, 256, "the image, and zeros around it", "small")
        + words(244, 26, "what each head attends to")
        + group(244, 44, heads)
        + words(244, 256, "softmax weights: exactly 0 or 1", "small")
        + group(490, 84, results)
        + words(490, 26, "what comes out")
        + words(490, 256, "PROVED for all inputs, up to rounding", "small")
        + "</svg>\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the walk of README.")
    parser.add_argument("--write", type=Path, nargs="?", const=FILE, required=True, metavar="FILE", help="(%(const)s)")
    parser.parse_args().write.write_text(drawing(), encoding="utf-8")
