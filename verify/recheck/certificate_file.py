"""A strict parser of certificate files: missing, unknown and mistyped fields are refused.

:mod:`verify.argument.documents` describes the format.
"""

import hashlib
import json
import math
import re
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from verify.recheck.stored_layers import CONVOLUTION, TENSORS
from verify.recheck.strict_input import AnyPath, Record, Rejected, Vector, opened, strict_json

FORMAT, VERSION = "conv-as-attention certificate", 5
STEPS = ("tokens", "content", "target", "leakage", "taps", "rounding", "runs")
"""The names of steps 0 to 6."""
PARTS = ("rounding", "leakage", "taps", "bound")
_OPTIONAL = (dict, type(None))
_DOCUMENT = {
    "format": str,
    "version": int,
    "torch_version": str,
    "conv_file": _OPTIONAL,
    "mhsa_file": _OPTIONAL,
}
_DOCUMENT |= {"layers": list, "network": _OPTIONAL, "record_sha256": str}
_RECORD: dict[type, str] = {
    str: "name verdict sentence claim input_bound dtype torch_version",
    int: "version heads",
    list: "grid rounding leakage taps bound steps assumptions observed probes",
    dict: "conv_geometry mhsa_geometry conv_sha256 mhsa_sha256",
}
_STEP = {"number": int, "name": str, "holds": bool, "sentence": str}
_PROBE = {"execution": str, "inputs": int, "grid": list, "ratio": (int, float, str), "note": str}
_COUNTEREXAMPLE = {
    "input": list,
    "output": list,
    "convolution": str,
    "attention": str,
    "shapes": (list, type(None)),
}


class LayerCertificate(NamedTuple):
    """What a certificate file states about one layer, with the fields of ``Certificate``."""

    name: str
    verdict: str
    grid: Vector
    input_bound: float
    within: float | None
    dtype: str
    heads: int
    parts: dict[str, np.ndarray]  # rounding, leakage, taps and bound, each (D_out,)
    observed: np.ndarray  # (D_out,), perhaps infinite or NaN
    holds: bool  # every step is present and holds, and no run exceeds the bound
    geometries: tuple[Record, Record]  # of the convolution and of the attention layer, as stated
    digests: tuple[dict[str, str], dict[str, str]]  # of their tensors, by name
    # exact input {index: value}, output, convolution, attention; or only shapes
    counterexample: Record | None


Document = tuple[tuple[LayerCertificate, ...], tuple[str | None, ...]]
"""The certificates in a file, and the SHA-256 of the two weight files."""


def read_document(path: AnyPath) -> Document:
    """Read a certificate file.

    Raises:
        Rejected: the file was edited or is malformed.
        OSError: it cannot be read.
    """
    with opened(path) as file:
        document = strict_json(file.read(), str(path))
    if not isinstance(document, dict):
        raise Rejected(
            f"{path}: must be a certificate, but it holds no JSON object: {json.dumps(document)[:40]}"
        )
    try:
        return _document(document)
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
        message = (
            str(error)
            if isinstance(error, Rejected)
            else f"malformed ({type(error).__name__}: {error})"
        )
        raise Rejected(f"{path}: {message}") from None


def record_digest(document: Record) -> str:
    """SHA-256 of a document as canonical JSON, without its digest field."""
    rest = {key: value for key, value in document.items() if key != "record_sha256"}
    text = json.dumps(
        rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _document(document: Record) -> Document:
    _check_types(document, _DOCUMENT, "no certificate")
    if (document["format"], document["version"]) != (FORMAT, VERSION):
        raise Rejected(
            f"no certificate of version {VERSION}, but another file or version: certify again with this one"
        )
    if document["record_sha256"] != record_digest(document):
        raise Rejected("the certificate has been edited: its record_sha256 differs")
    files = document["conv_file"], document["mhsa_file"]
    for file in filter(None, files):
        _check_types(file, {"name": str, "sha256": str}, "a file")
    certificates = tuple(_layer_certificate(record) for record in document["layers"])
    if len({one.name for one in certificates}) != len(certificates):
        raise Rejected("a layer stands twice in the certificate")
    return certificates, tuple(file and file["sha256"] for file in files)


def _layer_certificate(record: Record) -> LayerCertificate:
    types: Record = {name: kind for kind, names in _RECORD.items() for name in names.split()}
    types |= {"within": (str, type(None)), "counterexample": _OPTIONAL, "overrun": _OPTIONAL}
    _check_types(record, types, "a layer's record")
    for step in record["steps"]:
        _check_types(step, _STEP, "a step or probe")
    for probe in record["probes"]:
        _check_types(probe, _PROBE, "a step or probe")
    _require_consistent(record)
    parts = {part: _numbers(record[part], record["verdict"] != "PROVED") for part in PARTS}
    observed = np.array([math.nan if x == "nan" else _number(x, True) for x in record["observed"]])
    if {len(part) for part in parts.values()} != {len(observed)}:
        raise Rejected("the bounds are of different lengths")
    within = None
    if record["within"] is not None:
        within = _positive(record["within"])
    counterexample = None
    if record["counterexample"] is not None:
        counterexample = _counterexample(record["counterexample"])
    return LayerCertificate(
        name=record["name"],
        verdict=record["verdict"],
        grid=_index(record["grid"], least=1),
        input_bound=_positive(record["input_bound"]),
        within=within,
        dtype=record["dtype"],
        heads=record["heads"],
        parts=parts,
        observed=observed,
        holds=_steps_hold(record["steps"], record["probes"])
        and bool((observed <= parts["bound"]).all()),
        geometries=(record["conv_geometry"], record["mhsa_geometry"]),
        digests=(record["conv_sha256"], record["mhsa_sha256"]),
        counterexample=counterexample,
    )


def _require_consistent(record: Record) -> None:
    """Refuse a record with another verdict or version, whose claim contradicts it, or of other
    tensors.
    """
    if record["verdict"] not in ("PROVED", "REFUTED", "UNDECIDED") or record["version"] != VERSION:
        raise Rejected(f"unknown verdict {record['verdict']!r} or version {record['version']}")
    if record["claim"] != ("same function" if record["within"] is None else "difference within"):
        raise Rejected("claim and within contradict each other")
    convolution, attention = (tuple(record[name]) for name in ("conv_sha256", "mhsa_sha256"))
    if convolution not in (CONVOLUTION, CONVOLUTION[:1]) or attention != TENSORS:
        raise Rejected("its digests are not those of a convolution and an attention layer")


def _steps_hold(steps: list[Record], probes: list[Record]) -> bool:
    """Whether every step is present and holds, and no run exceeds the bound."""
    if [(step["number"], step["name"]) for step in steps] != [*enumerate(STEPS)]:
        return False
    within_bound = all(
        not isinstance(probe["ratio"], str) and probe["ratio"] <= 1 for probe in probes
    )
    return within_bound and all(step["holds"] for step in steps)


def _check_types(record: Any, types: Record, what: str) -> None:
    """Check that a record has these fields and no others, each of its type or of one of several."""
    if set(record) != set(types):
        raise Rejected(f"{what}: missing or unknown: {', '.join(sorted(set(types) ^ set(record)))}")
    for name, kinds in types.items():
        if type(record[name]) not in (kinds if isinstance(kinds, tuple) else (kinds,)):
            raise Rejected(f"{what}: {name} is of the wrong type")


def _number(text: str, infinite: bool) -> float:
    value = float.fromhex(text)
    if value.hex() != text or not value >= 0 or (value == math.inf and not infinite):
        raise Rejected(f"{text!r} must be a number in its range")
    return value


def _numbers(texts: list[str], infinite: bool) -> np.ndarray:
    return np.array([_number(text, infinite) for text in texts])


def _positive(text: str) -> float:
    value = _number(text, infinite=False)
    if value == 0:
        raise Rejected(f"{text!r} must be positive")
    return value


def _index(values: Any, least: int = 0) -> Vector:
    if not (
        isinstance(values, list) and all(type(x) is int and least <= x < 2**31 for x in values)
    ):
        raise Rejected(f"{str(values)[:80]} must be counts")
    return tuple(values)


def _counterexample(record: Record) -> Record | None:
    """A counterexample with exact numbers, or with the two output sizes where they differ."""
    _check_types(record, _COUNTEREXAMPLE, "the counterexample")
    if record["shapes"] is not None:
        if (
            record["input"]
            or record["output"]
            or {record["convolution"], record["attention"]} != {"None"}
        ):
            raise Rejected("the counterexample has shapes and numbers")
        theirs, ours = record["shapes"]
        return {"shapes": (_shape(theirs), _shape(ours))}
    entries = {_index(index): _fraction(value) for index, value in record["input"]}
    if len(entries) != len(record["input"]):
        raise Rejected("the counterexample sets an input twice")
    return {
        "input": entries,
        "output": _index(record["output"]),
        "convolution": _fraction(record["convolution"]),
        "attention": _fraction(record["attention"]),
    }


def _shape(values: Any) -> Vector | None:
    return None if values is None else _index(values, least=1)


def _fraction(text: str) -> Fraction:
    if not re.fullmatch(r"-?[0-9]{1,4000}(/[0-9]{1,4000})?", text):
        raise Rejected(f"{text[:40]!r} must be a fraction")
    return Fraction(text)
