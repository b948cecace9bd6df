"""Print the table of docs/numerics.md, the leakage of torch's softmax by sharpness α beside its bound:
python docs/leakage_table.py
"""

from verify.plots.leakage import LOOKS, leaked
from verify.rounding.leakage import leakage

ALPHAS = (0.5, 1.0, 2.0, 4.0, 6.5, 8.5, 17.5, 46.0, 93.0, 104.0, 746.0, 1024.0)


def markdown() -> str:
    """The table for two dimensions, as Markdown."""
    names = " | ".join(f"measured, {str(dtype).removeprefix('torch.')}" for dtype in LOOKS)
    lines = [f"| α | bound 1 − ϑ(α)^−2 | {names} |", "|---" * (2 + len(LOOKS)) + "|"]
    for alpha in ALPHAS:
        measured = (leaked(alpha, dtype, 2) for dtype in LOOKS)
        shown = " | ".join(f"{value:.1e}" if value else "0" for value in measured)
        lines.append(f"| {alpha:g} | {leakage(alpha, [0, 0]):.1e} | {shown} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
