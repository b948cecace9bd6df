"""Writes the certificate file, ``model.mhsa.json``.

JSON in UTF-8.  Floats that a claim rests on are in hexadecimal, so that they read back exactly.

    format, version      "conv-as-attention certificate", 5
    torch_version        of the run that wrote it
    conv_file, mhsa_file {"name", "sha256"} of the weight files, or null
    layers               for each layer its path in the network ("" for a bare layer) and ``Certificate.record()``
    network              null, or the results of running both networks: their calls, and their distance from float64
    record_sha256        digest of all the rest as canonical JSON: sorted keys, no spaces, ASCII

:mod:`verify.recheck.certificate_file` reads it.
"""

import contextlib
import json
import math
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from verify.recheck.certificate_file import FORMAT, VERSION, record_digest
from verify.recheck.strict_input import AnyPath, Record, sha256_of

if TYPE_CHECKING:
    from verify.argument.certificate import Certificate


def write_document(
    path: AnyPath,
    layers: Iterable[tuple[str, "Certificate"]],
    conv_file: AnyPath | None = None,
    mhsa_file: AnyPath | None = None,
) -> None:
    """Write certificates to a file atomically: an earlier file is replaced entirely or not at all.

    Args:
        path: of the certificate file.
        layers: the path of each layer in the network, and its certificate.
        conv_file: the weight file with the convolutions, already written; its digest goes into the
            document.
        mhsa_file: the weight file with the attention layers.

    Raises:
        ValueError: two layers have the same name.
        OSError: a file cannot be read or written.

    >>> import construct, tempfile, torch, verify
    >>> conv = torch.nn.Conv1d(1, 1, kernel_size=3)
    >>> certificate = verify.certify(conv, construct.conv_to_mhsa(conv), grid=(8,))
    >>> with tempfile.NamedTemporaryFile(suffix=".mhsa.json") as file:
    ...     write_document(file.name, [("conv", certificate)])
    ...     is_document(file.name)
    True
    """
    replace_file(Path(path), document(layers, conv_file, mhsa_file))


def document(
    layers: Iterable[tuple[str, "Certificate"]],
    conv_file: AnyPath | None = None,
    mhsa_file: AnyPath | None = None,
    network: Record | None = None,
    *,
    mhsa_name: str | None = None,
    conv_sha256: str | None = None,
) -> bytes:
    """The content of a certificate file, for callers that write it together with another file.

    Args:
        layers: as in :func:`write_document`.
        conv_file: already written.
        mhsa_file: already written, perhaps under a temporary name.
        network: the results of running both networks, as the command writes them; the checker
            checks only their form.
        mhsa_name: the final name of the file with the attention layers.
        conv_sha256: digest of the file with the convolutions, taken when they were read; without
            it, the file is hashed now.
    """
    records = [{"name": name, **certificate.record()} for name, certificate in layers]
    if len({record["name"] for record in records}) != len(records):
        raise ValueError("two layers have the same name")
    import torch

    content = json_data(
        {
            "format": FORMAT,
            "version": VERSION,
            "torch_version": str(torch.__version__),
            "conv_file": _digest_of(conv_file, sha256=conv_sha256),
            "mhsa_file": _digest_of(mhsa_file, mhsa_name),
            "layers": records,
            "network": network,
        }
    )
    content["record_sha256"] = record_digest(content)
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode(errors="backslashreplace")  # a lone surrogate becomes JSON's own escape


def is_document(path: AnyPath) -> bool:
    """Whether a file is a certificate as it was written, of any version, so that it may be
    replaced.
    """
    return _unchanged(path) is not None


def names_file(document_path: AnyPath, path: AnyPath) -> bool:
    """Whether a certificate, as it was written, has the digest of the attention layers' file at
    ``path``.
    """
    content = _unchanged(document_path)
    if content is None or not isinstance(content.get("mhsa_file"), dict):
        return False
    return content["mhsa_file"].get("sha256") == sha256_of(path)


def _unchanged(path: AnyPath) -> Record | None:
    if not Path(path).is_file():  # to read a pipe would block
        return None
    try:
        content = json.loads(Path(path).read_bytes())
        if content["format"] == FORMAT and content["record_sha256"] == record_digest(content):
            return content
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        pass
    return None


def _digest_of(
    path: AnyPath | None, name: str | None = None, sha256: str | None = None
) -> dict[str, str] | None:
    if path is None:
        return None
    # The bytes of the name, independent of the locale.
    text = os.fsencode(name or Path(path).name).decode(errors="backslashreplace")
    return {"name": text, "sha256": sha256 or sha256_of(path)}


def json_data(value: Any) -> Any:
    """The value as JSON types: infinity and NaN, which JSON lacks, become strings; tuples and
    numpy's numbers are converted.
    """
    if isinstance(value, dict):
        return {key: json_data(x) for key, x in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return json_data(value.tolist())
    if isinstance(value, list | tuple):
        return list(value) if all(type(x) is str for x in value) else [json_data(x) for x in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: into a temporary file beside it, fsynced, then renamed.

    Raises:
        OSError: it cannot be written; an earlier file is unchanged.
    """
    path = path.resolve()
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            # Name the requested file, not the temporary one.
            raise type(error)(error.errno, error.strerror, str(path)) from None
        raise
