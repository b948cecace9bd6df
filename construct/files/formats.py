"""Detects a model file's format from its first bytes, and says what a file is that holds no model."""

import json
import re
from codecs import getincrementaldecoder
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

from construct.errors import BadModelFile, one_line, printable
from construct.files.archives import AGAIN, ZIP, check_archive
from construct.files.isolation import refusing
from construct.weights.record import GEOMETRY

_FOREIGN = {
    rb"version https://git-lfs": "a git-lfs pointer, not the file itself (run git lfs pull)",
    rb"\x1f\x8b": "gzip-compressed (unpack it with gunzip)",
    rb"BZh": "bzip2-compressed (unpack it with bunzip2)",
    rb"\xfd7zXZ\0": "xz-compressed (unpack it with unxz)",
    rb"\x28\xb5\x2f\xfd": "zstd-compressed (unpack it with unzstd)",
    rb".{257}ustar": "a tar archive (unpack it with tar)",
    rb"\x89PNG": "a PNG image (give the model's file)",
    rb"\xff\xd8\xff": "a JPEG image (give the model's file)",
    rb"GIF8": "a GIF image (give the model's file)",
    rb"%PDF": "a PDF document (give the model's file)",
    rb"\x7fELF": "a compiled program (give the model's file)",
    rb"\x89HDF": "an HDF5 file, perhaps of Keras (only PyTorch models are read)",
    rb"\x93NUMPY": "a numpy array (give the model's file)",
    rb"GGUF": "a GGUF file (only PyTorch models are read)",
    # A protobuf message whose first field is a small version number, and whose second one is known
    # to ONNX.
    rb"\x08[\x00-\x1f][\x12\x1a\x22\x3a\x42]": (
        "an ONNX model, which is not read (give the PyTorch model that it was exported from)"
    ),
}
"""Formats by how their files begin."""


def kind_of(file: BinaryIO, path: Path) -> tuple[str, tuple[str, ...]]:
    """The format of an open file by its content: "torch.save", "pt2", "pickle" or "safetensors";
    and notes.  A zip archive is checked.

    Raises:
        BadModelFile: another format, which is named, or a damaged archive.
    """
    _refuse_part(path.name)
    file.seek(0)
    start = file.read(512)
    if not start:
        raise BadModelFile("the file is empty", "save the model again")
    if start[:4] == ZIP:
        return check_archive(file)
    for beginning, name in _FOREIGN.items():
        if re.match(beginning, start, re.DOTALL):
            raise BadModelFile(f"not a model file but {name}")
    # A safetensors file begins with the length of its header, which may look like a pickle's first
    # opcode.
    torn = 2 < len(start) <= 8 and not start[2:].strip(b"\0")
    pickled = (b"\x80" <= start[:2] <= b"\x80\x05" and not torn) or start.startswith(_OLD)
    if start[8:9] == b"{" or (path.suffix == ".safetensors" and not pickled):
        return "safetensors", ()
    if pickled:
        return "pickle", ()
    raise BadModelFile(
        f"not a model file{_as_text(start)}", "give a file that torch.save or safetensors wrote"
    )


def _refuse_part(name: str) -> None:
    """Refuse the index of shards, one shard of several, and a part of a distributed checkpoint, with the way to one file.

    Raises:
        BadModelFile: it is one of these.
    """
    if name.endswith(".distcp"):
        way = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch ITS_FOLDER model.pt"
        raise BadModelFile(
            "a part of a distributed checkpoint", f"make one file of its folder: {way}"
        )
    shards = re.fullmatch(r"(.+)-\d{5}(-of-(?!00001\.)\d{5})(\.\w+)|(.+)(\.\w+)\.index\.json", name)
    if shards is None:
        return
    stem, *of, suffix = filter(None, shards.groups())
    count = "".join(of) or "-of-*"
    merge = _MERGE
    if suffix == ".safetensors":
        merge = _MERGE_SAFETENSORS
    code = printable(merge.replace("PATTERN", f"{stem}-*{count}{suffix}"))
    what = "a shard of a model, or the index of its shards"
    raise BadModelFile(what, f'make one file in their folder: python -c "{code}"')


_MERGE = (
    "import glob, torch as s; "
    "s.save({k: v for f in glob.glob('PATTERN') for k, v in s.load(f).items()}, 'model.pt')"
)
_MERGE_SAFETENSORS = (
    "import glob, safetensors.torch as s; s.save_file("
    "{k: v for f in glob.glob('PATTERN') for k, v in s.load_file(f).items()}, 'model.safetensors')"
)
"""Code that makes one file of a model's shards."""


def _as_text(start: bytes) -> str:
    """What a text is, in words; empty if it is none."""
    try:
        text = getincrementaldecoder("utf-8")().decode(start)  # the last character may be cut
    except ValueError:
        return ""
    if not all(c.isprintable() or c.isspace() for c in text):
        return ""
    kind = "plain text"
    if text.lstrip().lower().startswith(("<!doctype", "<html", "<?xml", "<head")):
        kind = "an HTML page, perhaps of a failed download"
    return f" but {kind}, beginning with {one_line(text.strip()[:30])!r}"


_OLD = b"L119547037146038801333356L\n"
"""How a file of torch.save before 1.6 begins in pickle protocol 1."""


def read_safetensors(file: BinaryIO) -> dict[str, Any]:
    """The state dict in a safetensors file, by the library, with the geometry of its attention
    layers where a state dict has it; a key that stands twice is refused.

    Raises:
        BadModelFile: the library does not read it, or it is ambiguous.
    """
    from safetensors.torch import load

    data = file.read()
    with refusing("not safetensors, or truncated: ", AGAIN):  # its class of errors is not public
        state: Any = OrderedDict(load(data))
    with refusing("its safetensors header is wrong: ", "save it again"):
        header = strict_json(data[8 : 8 + int.from_bytes(data[:8], "little")].decode())
    with refusing("its geometry must be JSON: "):
        records = strict_json((header.get("__metadata__") or {}).get(GEOMETRY, "{}"))
    if not isinstance(records, dict):
        raise BadModelFile("its geometry must be a JSON object")
    state._metadata = {path: {GEOMETRY: record} for path, record in records.items()}
    return state


def strict_json(text: str) -> Any:
    """Parse JSON, refusing duplicate keys.

    Raises:
        ValueError: it is not such JSON.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            (key, _), *_ = Counter(key for key, _ in pairs).most_common()
            raise ValueError(f"the key {key[:100]!r} stands twice, which is ambiguous")
        return values

    return json.loads(text, object_pairs_hook=unique)
