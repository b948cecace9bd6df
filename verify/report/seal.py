"""The digest in every report page, by which an unchanged page is known and may be replaced.
Imports no torch.
"""

import hashlib
import re
from pathlib import Path

SEAL = re.compile(rb'<meta name="generator" content="conv-as-attention report ([0-9a-f]*)">')
"""The tag near a page's start that holds the SHA-256 of the page with an empty digest."""


def sealed(page: bytes) -> bytes:
    """The page, whose tag is empty, with its digest."""
    tag = SEAL.search(page)
    assert tag is not None
    return page[: tag.start(1)] + hashlib.sha256(page).hexdigest().encode() + page[tag.start(1) :]


def is_page(path: Path) -> bool:
    """Whether a file is a page of this project as it was written."""
    content = path.read_bytes()
    tag = SEAL.search(content[:1000])
    return tag is not None and sealed(content[: tag.start(1)] + content[tag.end(1) :]) == content
