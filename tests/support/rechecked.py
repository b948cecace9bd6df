"""A certificate and its two weight files in a folder, as the command writes them and the checker reads them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import torch

import verify
from verify.argument.documents import write_document


class Files:
    """The three files, and the checker's result for them."""

    def __init__(self, folder: Path):
        self.certificate, self.conv, self.mhsa = (folder / f"model{end}" for end in (".mhsa.json", ".pt", ".mhsa.pt"))

    def save(self, conv: Any, mhsa: Any) -> None:
        torch.save(conv, self.conv)
        torch.save(mhsa, self.mhsa)

    def write(self, layers: Iterable[tuple[str, Any]], conv: Any, mhsa: Any) -> Self:
        """Write the certificates of layers, by their paths in both models."""
        self.save(conv, mhsa)
        write_document(self.certificate, layers, self.conv, self.mhsa)
        return self

    def check(self) -> Any:
        return verify.check(self.certificate, self.conv, self.mhsa)

    def rechecked(self, certificate: Any, conv: Any, mhsa: Any) -> str:
        """The verdict's name after writing one certificate."""
        return self.write([("", certificate)], conv, mhsa).check().verdict.name
