"""Reads a model file without running code from it: torch.save files and safetensors, of modules or state dicts.

The content decides the format, not the file's name.  Pickles are read by ``torch.load(weights_only=True)`` with a list of
exact classes, after a walk that checks every size.  A file that needs more is refused, and the message names its classes.
Only ``trust`` lets a file run code.
"""

import hashlib
import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from construct.attention import EXECUTIONS, MHSA
from construct.errors import BadModelFile, describe, naming, one_line, printable
from construct.files.allow_list import Allowed, allow_options, allowing, import_allowed, stand_in, unlisted_names
from construct.files.archives import Malformed, Truncated
from construct.files.checkpoints import model_paths, unwrap
from construct.files.containers import Archive, check_archive, check_safetensors, kind_of
from construct.files.destination import FilePath, regular_file
from construct.files.pickle_walk import Walker, walk_bytes, walk_legacy
from construct.geometry import ConvGeometry
from construct.modules.traversal import checked_modules
from construct.weights import NAMES, MHSAWeights, encoding_of


@dataclass(frozen=True)
class ModelFile:
    """A model file that was read.

    Attributes:
        sha256: the digest of its bytes, in hexadecimal.
        kind: its format: "torch.save", "pickle" (of torch.save before 1.6), "safetensors" or "pt2".
        notes: what was assumed or ignored, one sentence each.
        metadata: the metadata of a safetensors file.
        extra_names: the names in it that only ``allow`` or ``trust`` admitted.
    """

    path: Path
    sha256: str
    content: nn.Module | dict[str, Tensor]
    kind: str
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    extra_names: tuple[str, ...] = ()


@contextmanager
def _opened(path: FilePath) -> Iterator[BufferedReader]:
    """A file, opened for reading; errors within the block name it."""
    with naming(path):
        try:
            with Path(path).open("rb") as file:
                yield file
        except OSError as error:
            raise BadModelFile(one_line(error.strerror or error), "check the file") from error


def read(path: FilePath, *, allow: Iterable[str] = (), trust: bool = False, inert: bool = False) -> ModelFile:
    """Read a module or a state dict; code in the file runs only with ``trust``.

    ``allow`` and ``trust`` are those of :func:`construct.load`.  With ``inert``, objects of other classes are read without
    importing these classes: as modules that keep their content and compute nothing.

    Raises:
        BadModelFile: the file does not exist, is damaged, or holds no model or classes that are not allowed.
    """
    place, allowed = regular_file(path), import_allowed(allow)
    notes: list[str] = []
    metadata: dict[str, str] = {}
    extra_names: list[str] = []
    inside = ""
    with _opened(path) as file:
        kind, archive = _detect(file, place)
        suffix = place.suffix.lower()
        if kind == "safetensors":
            metadata = check_safetensors(file)
        elif kind == "pickle" and suffix in (".safetensors", ".onnx"):
            # Users choose these formats to avoid pickles.
            raise BadModelFile(f"a pickle, though its name ends in {suffix}", "rename it if you want it read")
        other = (suffix == ".safetensors") != (kind == "safetensors") or suffix == ".onnx"
        if other and suffix in _SUFFIXES:
            notes.append(f"the name ends in {suffix}, but the content is {_KINDS[kind]}, and was read as that")
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        content: object
        if kind == "safetensors":
            content = _safetensors(file)
        elif kind == "pt2":
            if not trust:
                what = "a program of torch.export, and to load one can run code that it holds"
                advice = "if you know who made it, or save the nn.Module or its state dict"
                raise BadModelFile(what, f"trust=True {advice}", option=f"--trust {advice}")
            content = _load_trusted(file, kind)
        else:
            content, walker = _load_pickled(file, archive, printable(path), allowed, trust, inert)
            inside = model_paths(walker.root)
            extra_names = unlisted_names(walker)
        if trust and kind != "safetensors":
            notes.append("trusted: it was loaded with whatever code it holds")
        content, unwrapped = unwrap(content, inside)
        checked = _checked_content(content, inside)
    return ModelFile(place, digest, checked, kind, (*notes, *unwrapped), metadata, tuple(extra_names))


def read_inputs(path: FilePath) -> Any:
    """Read the arguments of a call that ``torch.save`` wrote: a tensor, or a tuple or dict of tensors and plain values.

    Raises:
        BadModelFile: no such file, or something else in it.
    """
    place = regular_file(path)
    with _opened(path) as file:
        kind, archive = _detect(file, place)
        if kind not in ("torch.save", "pickle"):
            raise BadModelFile(f"{_KINDS[kind]}, not the inputs of a network", "save them with torch.save")
        content, _ = _load_pickled(file, archive, printable(path), Allowed())
        if isinstance(content, nn.Module) or not isinstance(content, Tensor | tuple | list | Mapping):
            what = f"a {type(content).__name__}, not the inputs of a network"
            raise BadModelFile(what, "save a tensor, tuple or dict")
    return tuple(content) if isinstance(content, list) else content


LAZY = "torch.nn.parameter.UninitializedParameter"
"""The class of weights that are not initialised yet."""
QUANTISED = frozenset(f"torch.{kind}Storage" for kind in ("QInt8", "QUInt8", "QInt32", "QUInt4x2", "QUInt2x4"))
"""The storages of quantised tensors."""
_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pkl", ".onnx")
_KINDS = {
    "safetensors": "safetensors",
    "torch.save": "of torch.save",
    "pickle": "of torch.save as it was before 1.6",
    "pt2": "a program of torch.export",
}


def _detect(file: BinaryIO, path: Path) -> tuple[str, Archive | None]:
    """The format of a file, a key of ``_KINDS``; and, if it is a zip archive, the checked archive."""
    kind = kind_of(file, path)
    archive = check_archive(file) if kind == "zip" else None
    return kind if archive is None else archive.kind, archive


def _load_pickled(
    file: BinaryIO, archive: Archive | None, name: str, allowed: Allowed, trust: bool = False, inert: bool = False
) -> tuple[object, Walker]:
    """Load a pickle after a walk has checked every class and size in it."""
    with allowing() as ours:
        walker = walk_legacy(file, ours) if archive is None else walk_bytes(archive.read("data.pkl"), ours)
    if trust:
        file.seek(0)
        return _load_trusted(file, "pickle"), walker
    named = allowed.of(unlisted_names(walker))
    others = unlisted_names(walker, named)
    if others and (not inert or LAZY in others):
        raise _not_allowed(others, walker, name, allowed)
    named |= {other: stand_in(other) for other in others}
    try:
        if walker.malformed is not None:
            raise walker.malformed
        if archive is not None:
            archive.fit(walker.storages)
        file.seek(0)
        with allowing(named), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old protocols
            return torch.load(file, map_location="cpu", weights_only=True), walker
    except MemoryError:
        raise
    except Truncated as error:
        raise BadModelFile(f"the file is truncated: {error}", "copy or download it again") from error
    except Exception as error:  # torch.load may raise anything; its messages suggest weights_only=False
        what = one_line(error) if isinstance(error, Malformed) else f"torch.load raised {type(error).__name__}"
        what = f"not a model that can be read safely: {what}"
        raise BadModelFile(what, "save the model again with torch.save") from error


def _load_trusted(file: BinaryIO, kind: str) -> object:
    """Load a pickle or a torch.export program, running any code in it, because the user said ``trust``.

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
        raise BadModelFile(describe(error), "put the package of its classes on PYTHONPATH") from error


def _not_allowed(names: list[str], walker: Walker, name: str, allowed: Allowed) -> BadModelFile:
    """The error for classes that are not allowed, with every remedy."""
    if LAZY in names:
        what = "holds lazy modules whose weights do not exist yet"
        return BadModelFile(what, "run one batch through the network, and save it again")
    if not QUANTISED.isdisjoint(names):  # no name that could be allowed would make them readable
        return BadModelFile("holds quantised tensors, which are not read", "save the network before it is quantised")
    what = f"holds classes that are not allowed: {one_line(', '.join(names))}"
    alone = ""
    if inside := model_paths(walker.root):
        what = f"the model is not at its top: {inside}; the file {what}"
        alone = "save that alone, from a program where its classes can be imported"
    given = [*allowed.exact, *allowed.packages]
    more = [choice for choice in allow_options(names) if choice not in given]
    choices = [*given, *more] if more else []
    if allowed.packages and not choices:
        what += f", which {', '.join(allowed.packages)} does not define as a class"
    trusting = "; or, if you trust these packages, whose code then may run: " if choices else ""
    call = f"{trusting}construct.load({name!r}, allow={choices!r})" if choices else ""
    return BadModelFile(
        what,
        (alone or "save its state dict, or give its network with model=Net()") + call,
        option=(alone or "save a state dict and give --arch or --model-file")
        + (f"{trusting}python -m construct.from_conv {shlex.quote(name)}" if choices else "")
        + "".join(f" --allow {shlex.quote(choice)}" for choice in choices),
    )


def _safetensors(file: BinaryIO) -> dict[str, Tensor]:
    from safetensors.torch import load

    try:
        return load(file.read())
    except MemoryError:
        raise
    except Exception as error:  # its class of errors is not public
        raise BadModelFile(f"not safetensors: {describe(error)}", "save it again") from error


def _checked_content(content: object, inside: str) -> nn.Module | dict[str, Tensor]:
    """Check the content: a file may hold allowed classes with attributes that contradict each other."""
    if isinstance(content, nn.Module):
        try:
            for path, module in checked_modules(content):
                if isinstance(module, MHSA):
                    _check_attention(module, path)
            content.state_dict()
        except Exception as error:  # attributes that are missing or of any type at all
            raise BadModelFile(f"its layers contradict themselves: {describe(error)}") from error
        return content
    if isinstance(content, dict) and content:
        if invalid := [key for key in content if not all(key.split("."))]:
            what = f"a tensor is named {invalid[0]!r:.80}, which no path is"
            raise BadModelFile(what, "save the state dict of a module")
        return content
    what = "an empty dict" if isinstance(content, dict) else f"an object of class {type(content).__name__}"
    if inside:
        raise BadModelFile(f"holds {what}, not a model; {inside}", "save that alone")
    raise BadModelFile(f"holds {what}, not a model", "save the nn.Module, or its state dict")


def _check_attention(layer: MHSA, path: str) -> None:
    """Check every part of an attention layer by building it again from them.

    Raises:
        ValueError: a part is missing or does not fit.
    """
    stated = {field.name: vars(layer.geometry)[field.name] for field in fields(ConvGeometry)}
    parts = {name: getattr(layer, name) for name in NAMES}
    for name, part in parts.items():
        if not (isinstance(part, Tensor) and part.layout == torch.strided and part.is_floating_point()):
            raise ValueError(f"{path}: {name} is no dense tensor of floating-point numbers")
    if layer._execution not in EXECUTIONS:
        raise ValueError(f"{path}: no execution {layer._execution!r}")
    radix = layer.radix
    if not (radix is None or (isinstance(radix, tuple) and all(type(weight) is int for weight in radix))):
        raise ValueError(f"{path}: its radix is {radix!r}, not whole numbers")
    name = layer._encoding
    encoding = None if name is None else encoding_of(name, layer.geometry.dims, partial(getattr, layer))
    rebuilt = MHSA(ConvGeometry(**stated), MHSAWeights(**parts), layer._execution, radix, encoding)
    if rebuilt.heads != layer.heads:
        raise ValueError(f"{path}: says {layer.heads!r} heads, has {rebuilt.heads}")
