"""What the claims of the literature quote of the tables of docs/learned.md, and the page of the
claims.
"""

import textwrap
from collections.abc import Sequence
from typing import Any

import verify
from examples.learned.results import rows, table
from examples.learned.variants import VARIANTS


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
        parts = [f'"{part}"' for part in textwrap.wrap(value, 110, drop_whitespace=False)]
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
