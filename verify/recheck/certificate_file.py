"""A strict parser of certificate files: missing, unknown and mistyped fields are refused.

:mod:`verify.argument.documents` describes the format.
"""

import hashlib
import json
import math
import os
import re
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from verify.recheck.pickles import Rejected
from verify.recheck.weight_files import opened, strict_json

FORMAT, VERSION = "conv-as-attention certificate", 4
STEPS = ("tokens", "content", "target", "leakage", "taps", "rounding", "runs")
"""The names of steps 0 to 6."""
PARTS = ("rounding", "leakage", "taps", "bound")
_DOCUMENT = {"format", "version", "torch_version", "conv_file", "mhsa_file", "layers", "network", "record_sha256"}
_RECORD: dict[type, str] = {
    str: "name verdict sentence claim input_bound dtype conv_sha256 mhsa_sha256 torch_version tightness",
    int: "version heads",
    list: "grid rounding leakage taps bound steps assumptions observed probes",
    dict: "conv_geometry mhsa_geometry",
}
_STEP = {"number": int, "name": str, "holds": bool, "sentence": str}
_PROBE = {"execution": str, "inputs": int, "grid": list, "ratio": (int, float, str), "note": str}
_COUNTEREXAMPLE = {"input": list, "output": list, "convolution": str, "attention": str, "shapes": (list, type(None))}
_OVERRUN = {
    "execution": str,
    "grid": list,
    "input": (list, type(None)),
    "output": list,
    "convolution": str,
    "attention": str,
}
_FIGURE = (int, float, str, type(None))
_NETWORK = {
    "input_size": (list, type(None)),
    "inputs": str,
    "calls": {"same": bool, "difference": (str, type(None)), "compared": int, "converted": int, "unseen": list},
    "convolution_calls": {"original": int, "converted": int},
    "convolutions": {"executed": int, "converted": int},
    "max_abs": _FIGURE,
    "numbers": (dict, type(None)),
    "same_expression": bool,
}
_FIGURES = ("original", "converted", "limit", "largest")
_NUMBERS = {"verdict": str, "sentence": str, **dict.fromkeys(_FIGURES, _FIGURE), "no_float64": str}
_NUMBERS |= {"predictions": {"agree": (int, type(None)), "of": int}}


class LayerCertificate(NamedTuple):
    """What a certificate file states about one layer, with the fields of ``Certificate``."""

    name: str
    verdict: str
    grid: tuple[int, ...]
    input_bound: float
    within: float | None
    dtype: str
    heads: int
    parts: dict[str, np.ndarray]  # rounding, leakage, taps and bound, each (D_out,)
    holds: bool  # every step is present and holds, and no run exceeds the bound
    plausible: bool  # the tightness is the bound over the largest observed difference
    geometries: tuple[dict[str, Any], dict[str, Any]]  # of the convolution and of the attention layer, as stated
    digests: tuple[str, str]  # of their numbers
    counterexample: dict[str, Any] | None  # exact input {index: value}, output, convolution, attention; or only shapes


class Document(NamedTuple):
    """A certificate file with a correct digest and well-formed fields."""

    certificates: tuple[LayerCertificate, ...]
    digests: tuple[str | None, str | None]  # of the two weight files


def read_document(path: str | os.PathLike[str]) -> Document:
    """Read a certificate file.

    Raises:
        Rejected: the file was edited or is malformed.
        OSError: it cannot be read.
    """
    with opened(path) as file:
        document = strict_json(file.read(), str(path))
    if not isinstance(document, dict):
        raise Rejected(f"{path}: no certificate, as it holds no JSON object but {json.dumps(document)[:40]}")
    try:
        return _document(document)
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
        message = str(error) if isinstance(error, Rejected) else f"malformed ({type(error).__name__}: {error})"
        raise Rejected(f"{path}: {message}") from None


def record_digest(document: dict[str, Any]) -> str:
    """SHA-256 of a document as canonical JSON, without its digest field."""
    rest = {key: value for key, value in document.items() if key != "record_sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


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
    if type(document["torch_version"]) is not str:
        raise Rejected("torch_version is of the wrong type")
    if document["network"] is not None:
        _check_network(document["network"])
    certificates = tuple(_layer_certificate(record) for record in document["layers"])
    if len({one.name for one in certificates}) != len(certificates):
        raise Rejected("a layer stands twice in the certificate")
    return Document(certificates, (digests[0], digests[1]))


def _check_network(network: dict[str, Any]) -> None:
    """Check the form of the network's record; repeating its runs would need the network."""
    _check_types(network, _NETWORK, "network")
    _index(network["input_size"] or [], least=1)
    calls, numbers = network["calls"], network["numbers"]
    counts = (*network["convolution_calls"].values(), *network["convolutions"].values())
    _index([calls["compared"], calls["converted"], *counts])
    if not all(type(text) is str for text in calls["unseen"]) or calls["same"] != (calls["difference"] is None):
        raise Rejected("calls: unseen are no texts, or same and difference contradict each other")
    if network["same_expression"] and not (calls["same"] and calls["unseen"] == []):
        raise Rejected("network: the same expression, but not the same calls")
    _figure(network["max_abs"])
    if numbers is None:
        return
    _check_types(numbers, _NUMBERS, "numbers")
    if numbers["verdict"] not in ("CHECKED", "REFUTED", "UNDECIDED"):
        raise Rejected(f"numbers: unknown verdict {numbers['verdict']!r}")
    for name in _FIGURES:
        _figure(numbers[name])


def _figure(value: Any) -> None:
    if not (isinstance(value, float | int) and value >= 0) and value not in ("inf", "nan", None):
        raise Rejected(f"network: {value!r} is no figure")


def _layer_certificate(record: dict[str, Any]) -> LayerCertificate:
    types: dict[str, Any] = {name: kind for kind, names in _RECORD.items() for name in names.split()}
    types |= {"within": (str, type(None)), "counterexample": (dict, type(None)), "overrun": (dict, type(None))}
    _check_types(record, types, "a layer's record")
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
    observed = np.array([_measured(x) for x in record["observed"]])
    if len({len(observed), *map(len, parts.values())}) != 1:
        raise Rejected("the bounds are of different lengths")
    plausible = _check_measured(record, parts["bound"], observed)
    holds = (
        [(step["number"], step["name"]) for step in record["steps"]] == [*enumerate(STEPS)]
        and all(step["holds"] for step in record["steps"])
        and bool((observed <= parts["bound"]).all())
        and all(not isinstance(probe["ratio"], str) and probe["ratio"] <= 1 for probe in record["probes"])
    )
    return LayerCertificate(
        name=record["name"],
        verdict=verdict,
        grid=_index(record["grid"], least=1),
        input_bound=_number(record["input_bound"], False, positive=True),
        within=None if within is None else _number(within, False, positive=True),
        dtype=record["dtype"],
        heads=record["heads"],
        parts=parts,
        holds=holds,
        plausible=plausible,
        geometries=(record["conv_geometry"], record["mhsa_geometry"]),
        digests=(record["conv_sha256"], record["mhsa_sha256"]),
        counterexample=None if record["counterexample"] is None else _counterexample(record["counterexample"]),
    )


def _check_measured(record: dict[str, Any], bound: np.ndarray, observed: np.ndarray) -> bool:
    """Check measurements for consistency only; repeating them would need torch."""
    with np.errstate(all="ignore"):
        tightness = float(np.where((observed > 0) & (bound < np.inf), bound / observed, np.inf).min(initial=np.inf))
    claimed = _measured(record["tightness"])
    plausible = claimed == tightness or abs(claimed - tightness) <= 1e-9 * tightness
    if (over := record["overrun"]) is None:
        return plausible
    _check_types(over, _OVERRUN, "the run over the bound")
    numbers = [abs(float.fromhex(x)) for x in over["input"] or []]
    most = _number(record["input_bound"], False, positive=True)
    sizes = math.prod(_index(over["grid"], least=1)) * record["conv_geometry"]["in_channels"]
    fits = over["input"] is None or (len(numbers) == sizes and all(x <= most for x in numbers))
    if not fits or len(_index(over["output"])) != len(over["grid"]) + 1 or record["verdict"] != "REFUTED":
        raise Rejected("the run over the bound is no run that the claim is about")
    _fraction(over["convolution"])
    float.fromhex(over["attention"])
    return plausible


def _check_types(record: Any, types: dict[str, Any], what: str) -> None:
    """Check each field of a record: its type is one type, one of several, or a dict of types for a nested record."""
    if set(record) != set(types):
        raise Rejected(f"{what}: missing or unknown: {', '.join(sorted(set(types) ^ set(record)))}")
    for name, kinds in types.items():
        allowed = (dict,) if isinstance(kinds, dict) else kinds if isinstance(kinds, tuple) else (kinds,)
        if type(record[name]) not in allowed:
            raise Rejected(f"{what}: {name} is of the wrong type")
        if isinstance(kinds, dict):
            _check_types(record[name], kinds, name)


def _number(text: str, infinite: bool, positive: bool = False) -> float:
    value = float.fromhex(text)
    if value.hex() != text or not value >= 0 or (value == math.inf and not infinite) or (positive and value == 0):
        raise Rejected(f"{text!r} is no number that belongs there")
    return value


def _measured(text: str) -> float:
    """A measured number; NaN is allowed and exceeds every bound."""
    return math.nan if text == "nan" else _number(text, True)


def _index(values: Any, least: int = 0) -> tuple[int, ...]:
    if not (isinstance(values, list) and all(type(x) is int and least <= x < 2**31 for x in values)):
        raise Rejected(f"{str(values)[:80]} are no counts")
    return tuple(values)


def _counterexample(record: dict[str, Any]) -> dict[str, Any] | None:
    """A counterexample with exact numbers, or with the two output sizes where they differ."""
    _check_types(record, _COUNTEREXAMPLE, "the counterexample")
    if record["shapes"] is not None:
        theirs, ours = (None if shape is None else _index(shape, least=1) for shape in record["shapes"])
        if record["input"] or record["output"] or {record["convolution"], record["attention"]} != {"None"}:
            raise Rejected("the counterexample has shapes and numbers")
        return {"shapes": (theirs, ours)}
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
