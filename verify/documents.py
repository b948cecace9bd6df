"""The certificate file, ``model.mhsa.json``: how it is written, and how strictly it is read.

JSON in UTF-8.  Floats that a claim rests on are written in hexadecimal, so they are read back exactly.

    format, version      "conv-as-attention certificate", 1
    torch_version        of the run that wrote it
    conv_file, mhsa_file {"name", "sha256"} of the weight files, or null
    layers               for each layer its path in the network ("" for a bare layer) and ``Certificate.record()``
    network              null, or end-to-end figures of a free form
    record_sha256        digest of all the rest as canonical JSON: sorted keys, no spaces, ASCII

Reading takes neither torch nor the builder, and refuses any field that is missing, unknown, or of the wrong type.
"""

import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from verify.arrays import Rejected, strict_json

if TYPE_CHECKING:
    from verify.certificate import Certificate

FORMAT, VERSION = "conv-as-attention certificate", 1
PARTS = ("rounding", "leakage", "taps", "bound")
_DOCUMENT = {"format", "version", "torch_version", "conv_file", "mhsa_file", "layers", "network", "record_sha256"}
_RECORD: dict[type, str] = {
    str: "name verdict sentence claim input_bound dtype conv_sha256 mhsa_sha256 torch_version",
    int: "version heads",
    list: "grid rounding leakage taps bound steps assumptions observed probes",
    dict: "conv_geometry mhsa_geometry",
}
_STEP = {"number": int, "name": str, "holds": bool, "sentence": str}
_PROBE = {"execution": str, "inputs": int, "grid": list, "ratio": (int, float, str), "note": str}
_COUNTEREXAMPLE = {"input": list, "output": list, "convolution": str, "attention": str}


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_document(
    path: str | os.PathLike[str],
    layers: Iterable[tuple[str, "Certificate"]],
    conv_file: str | os.PathLike[str] | None = None,
    mhsa_file: str | os.PathLike[str] | None = None,
    network: dict[str, Any] | None = None,
) -> None:
    """Write certificates to a file, in one step: whatever stood there is replaced whole or not touched.

    Args:
        path: of the certificate file.
        layers: the path of each layer in the network, and its certificate.
        conv_file: the weight file with the convolutions, already written; its digest goes into the document.
        mhsa_file: the weight file with the attention layers.
        network: end-to-end figures, of a free form; the checker does not recheck them.

    Raises:
        ValueError: two layers have one name.
        OSError: a file cannot be read or written.
    """
    records = [{"name": name, **certificate.record()} for name, certificate in layers]
    if len({record["name"] for record in records}) != len(records):
        raise ValueError("two layers have the same name")
    import torch

    document = _finite(
        {
            "format": FORMAT,
            "version": VERSION,
            "torch_version": str(torch.__version__),
            "conv_file": _digest_of(conv_file),
            "mhsa_file": _digest_of(mhsa_file),
            "layers": records,
            "network": network,
        }
    )
    document["record_sha256"] = record_digest(document)
    _replace(Path(path), (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def save_certificate(
    path: str | os.PathLike[str],
    certificate: "Certificate",
    conv_file: str | os.PathLike[str] | None = None,
    mhsa_file: str | os.PathLike[str] | None = None,
) -> None:
    """Write the certificate of a bare layer; see :func:`write_document`."""
    write_document(path, [("", certificate)], conv_file, mhsa_file)


def is_document(path: str | os.PathLike[str]) -> bool:
    """Whether a file is an earlier certificate, so that it may be replaced; whole and unedited or not."""
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT


def record_digest(document: dict[str, Any]) -> str:
    """SHA-256 of a document as canonical JSON, without its own digest."""
    rest = {key: value for key, value in document.items() if key != "record_sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_of(path: str | os.PathLike[str] | None) -> dict[str, str] | None:
    if path is None:
        return None
    with Path(path).open("rb") as file:
        return {"name": Path(path).name, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: such numbers become texts; tuples and numpy's numbers become JSON's."""
    if isinstance(value, dict):
        return {key: _finite(x) for key, x in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _finite(value.tolist())
    if isinstance(value, list | tuple):
        return [_finite(x) for x in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _replace(path: Path, content: bytes) -> None:
    path = path.resolve()
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


# ---- reading ---------------------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """What a document says of one layer, field by field as in ``Certificate``."""

    name: str
    verdict: str
    grid: tuple[int, ...]
    input_bound: float
    within: float | None
    dtype: str
    heads: int
    parts: dict[str, np.ndarray]  # rounding, leakage, taps and bound, each (D_out,)
    holds: bool  # every step is there and holds, and no run and nothing observed exceeds the bound
    geometries: tuple[dict[str, Any], dict[str, Any]]  # of the convolution and of the attention layer, as stated
    digests: tuple[str, str]  # of their numbers
    counterexample: dict[str, Any] | None  # input: {index: value}, output, convolution, attention; exact


class Document(NamedTuple):
    """A certificate file whose digest is right and whose fields are what they should be."""

    claims: tuple[Claim, ...]
    digests: tuple[str | None, str | None]  # of the two weight files


def read_document(path: str | os.PathLike[str]) -> Document:
    """Read a certificate file.

    Raises:
        Rejected: it has been edited, or has anything that does not belong there.
        OSError: it cannot be read.
    """
    document = strict_json(Path(path).read_bytes(), str(path))
    if not isinstance(document, dict):
        raise Rejected(f"{path}: no certificate, as it holds no JSON object but {json.dumps(document)[:40]}")
    try:
        return _document(document)
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
        told = str(error) if isinstance(error, Rejected) else f"odd ({type(error).__name__}: {error})"
        raise Rejected(f"{path}: {told}") from None


def _document(document: dict[str, Any]) -> Document:
    if set(document) != _DOCUMENT:
        raise Rejected(f"no certificate: missing or unknown: {', '.join(sorted(_DOCUMENT ^ set(document)))}")
    if document["format"] != FORMAT or not (type(document["version"]) is int and document["version"] == VERSION):
        raise Rejected(f"no certificate of version {VERSION}")
    if document["record_sha256"] != record_digest(document):
        raise Rejected("the certificate has been edited: its record_sha256 differs")
    digests = []
    for key in ("conv_file", "mhsa_file"):
        if document[key] is not None:
            _check_types(document[key], {"name": str, "sha256": str}, key)
        digests.append(None if document[key] is None else document[key]["sha256"])
    if type(document["torch_version"]) is not str or not isinstance(document["network"], dict | None):
        raise Rejected("torch_version or network is of the wrong type")
    claims = tuple(_claim(record) for record in document["layers"])
    if len({claim.name for claim in claims}) != len(claims):
        raise Rejected("a layer stands twice in the certificate")
    return Document(claims, (digests[0], digests[1]))


def _claim(record: dict[str, Any]) -> Claim:
    types: dict[str, Any] = {name: kind for kind, names in _RECORD.items() for name in names.split()}
    _check_types(
        record, types | {"within": (str, type(None)), "counterexample": (dict, type(None))}, "a layer's record"
    )
    verdict, within = record["verdict"], record["within"]
    if verdict not in ("PROVED", "REFUTED", "UNDECIDED") or record["version"] != VERSION:
        raise Rejected(f"unknown verdict {verdict!r} or version {record['version']}")
    if record["claim"] != ("same function" if within is None else "difference within"):
        raise Rejected("claim and within contradict each other")
    for rows, row_types in ((record["steps"], _STEP), (record["probes"], _PROBE)):
        for row in rows:
            _check_types(row, row_types, "a step or probe")
    if not all(type(text) is str for text in record["assumptions"]):
        raise Rejected("assumptions are no texts")
    parts = {part: np.array([_number(x, verdict != "PROVED") for x in record[part]]) for part in PARTS}
    observed = np.array([float.fromhex(x) for x in record["observed"]])
    numbers, channels = [step["number"] for step in record["steps"]], len(observed)
    if len({channels, *map(len, parts.values())}) != 1:
        raise Rejected("the bounds are of different lengths")
    holds = numbers == [*range(7)] and all(step["holds"] for step in record["steps"])
    holds = (
        holds and bool((observed <= parts["bound"]).all()) and all(_at_most_one(p["ratio"]) for p in record["probes"])
    )
    return Claim(
        name=record["name"],
        verdict=verdict,
        grid=_index(record["grid"], least=1),
        input_bound=_number(record["input_bound"], False, positive=True),
        within=None if within is None else _number(within, False, positive=True),
        dtype=record["dtype"],
        heads=record["heads"],
        parts=parts,
        holds=holds,
        geometries=(record["conv_geometry"], record["mhsa_geometry"]),
        digests=(record["conv_sha256"], record["mhsa_sha256"]),
        counterexample=None if record["counterexample"] is None else _counterexample(record["counterexample"]),
    )


def _check_types(record: Any, types: dict[str, Any], what: str) -> None:
    if set(record) != set(types):
        raise Rejected(f"{what}: missing or unknown: {', '.join(sorted(set(types) ^ set(record)))}")
    for name, kinds in types.items():
        if type(record[name]) not in (kinds if isinstance(kinds, tuple) else (kinds,)):
            raise Rejected(f"{what}: {name} is of the wrong type")


def _number(text: str, infinite: bool, positive: bool = False) -> float:
    value = float.fromhex(text)
    if value.hex() != text or not value >= 0 or (value == math.inf and not infinite) or (positive and value == 0):
        raise Rejected(f"{text!r} is no number that belongs there")
    return value


def _at_most_one(ratio: Any) -> bool:
    return not isinstance(ratio, str) and ratio <= 1


def _index(values: Any, least: int = 0) -> tuple[int, ...]:
    if not (isinstance(values, list) and all(type(x) is int and least <= x < 2**31 for x in values)):
        raise Rejected(f"{str(values)[:80]} are no counts")
    return tuple(values)


def _counterexample(record: dict[str, Any]) -> dict[str, Any] | None:
    """With exact numbers; None where the layers' outputs differ in shape, and there is no number to show."""
    _check_types(record, _COUNTEREXAMPLE, "the counterexample")
    if record["convolution"] == record["attention"] == "None":
        return None
    entries = {_index(index): _fraction(value) for index, value in record["input"]}
    if len(entries) != len(record["input"]):
        raise Rejected("the counterexample sets an input twice")
    return {
        "input": entries,
        "output": _index(record["output"]),
        "convolution": _fraction(record["convolution"]),
        "attention": _fraction(record["attention"]),
    }


def _fraction(text: str) -> Fraction:
    if not re.fullmatch(r"-?[0-9]{1,4000}(/[0-9]{1,4000})?", text):
        raise Rejected(f"{text[:40]!r} is no fraction")
    return Fraction(text)
