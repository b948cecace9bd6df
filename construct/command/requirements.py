"""The oldest torch that this project works with, checked before anything else is imported."""

import torch

OLDEST = (2, 10)


def check(version: str) -> None:
    """Raise ImportError, with the line that helps, if this version of torch is too old."""
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if numbers < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise ImportError(
            f"construct needs torch {wanted} or newer, and this is {version} (pip install 'torch>={wanted}')"
        )


check(torch.__version__)
