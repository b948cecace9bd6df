"""Files that may run code of their own, because the user said ``--trust``.  The only place that loads without a list."""

import warnings
from typing import BinaryIO

import torch

from construct.errors import BadModelFile, described


def trusted(file: BinaryIO, kind: str, name: str) -> object:
    """Whatever a pickle or a program of torch.export holds.

    Raises:
        BadModelFile: it cannot be loaded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind == "pt2":
                return dict(torch.export.load(file).state_dict)  # type: ignore[arg-type]
            return torch.load(file, map_location="cpu", weights_only=False)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # it may raise anything
        raise BadModelFile(f"{name}: {described(error)} (put the package of its classes on PYTHONPATH)") from error
