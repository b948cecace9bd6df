"""Reads a model file without running code from it: torch.save files and safetensors, of modules or
state dicts.

The content decides the format, not the file's name, and what a file holds is what its own library
returns: :mod:`construct.files.torch_files` has the one for torch's files.  A file that names
classes which are not allowed is refused, and the message names them.  Only ``trust`` lets a file
run code.
"""

import hashlib
import math
import shlex
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from construct.attention import MHSA
from construct.errors import BadModelFile, naming, one_line, printable
from construct.execution.traced import FROZEN
from construct.files.allowed import NOTHING, Allowed, allow_options, can_be_allowed, import_allowed
from construct.files.archives import RESAVE
from construct.files.checkpoints import model_paths, unwrap
from construct.files.destination import FilePath, regular_file
from construct.files.formats import kind_of, read_safetensors
from construct.files.isolation import refusing
from construct.files.layer_files import layer_of
from construct.files.torch_files import Loaded, StandIn, StandInTensor, is_module, load
from construct.geometry import ConvGeometry
from construct.modules.traversal import checked_modules, every_module


@dataclass(frozen=True)
class ModelFile:
    """A model file that was read.

    Attributes:
        sha256: the digest of its bytes, in hexadecimal.
        kind: its format: "torch.save", "pickle" (of torch.save before 1.6), "safetensors" or "pt2".
        notes: what was assumed or ignored, one sentence each.
        allowed: what the user allowed it to hold; None if ``trust`` allowed anything.
        values: what a state dict holds beside tensors, as modules' extra state.
        modules: every module that was made of it, reached by a path or not, but those of other
            models in a checkpoint.
    """

    path: Path
    sha256: str
    content: nn.Module | dict[str, Tensor]
    kind: str
    notes: list[str] = field(default_factory=list)
    allowed: Allowed | None = NOTHING
    values: Mapping[str, Any] = field(default_factory=dict)
    modules: tuple[nn.Module, ...] = ()


@contextmanager
def _opened(path: FilePath) -> Iterator[BufferedReader]:
    """A regular file, opened for reading; errors within the block name it."""
    regular_file(path)
    with naming(path):
        try:
            with Path(path).open("rb") as file:
                yield file
        except OSError as error:
            raise BadModelFile(one_line(error.strerror or error), "check the file") from error


def read(
    path: FilePath,
    *,
    allow: Iterable[str] = (),
    trust: bool = False,
    inert: bool = False,
    key: str | None = None,
) -> ModelFile:
    """Read a module or a state dict; code in the file runs only with ``trust``.

    ``allow``, ``trust`` and ``key`` are those of :func:`construct.load`.  With ``inert``, a file
    may hold other classes, too: they are not imported, and what is of them becomes modules that
    keep their content and compute nothing.

    Raises:
        BadModelFile: the file does not exist, is damaged, or holds no model or classes that are not
            allowed.
    """
    place = Path(path)
    allowed = import_allowed(allow)
    loaded = Loaded()
    with _opened(path) as file:
        kind, notes = kind_of(file, place)
        notes += _suffix_notes(kind, place.suffix.lower())
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        if kind == "safetensors":
            loaded.content = read_safetensors(file)
        elif trust:
            loaded.content = _load_trusted(file, kind)
            notes += ("trusted: it was loaded with whatever code it holds",)
        elif kind == "pt2":
            what = "a program of torch.export, and to load one can run code that it holds"
            advice = "if you know who made it, or save the nn.Module or its state dict"
            raise BadModelFile(what, f"trust=True {advice}", option=f"--trust {advice}")
        else:
            loaded = _load_safely(file, kind, allowed, printable(path), inert)
        content, unwrapped, values = unwrap(loaded.content, key)
        checked = _checked_content(content, loaded)
    others = {id(module) for module in _others(loaded.content, content)}
    return ModelFile(
        path=place,
        sha256=digest,
        content=checked,
        kind=kind,
        notes=[*notes, *unwrapped],
        allowed=None if trust else allowed,
        values=values,
        modules=tuple(module for module in loaded.modules if id(module) not in others),
    )


def _suffix_notes(kind: str, suffix: str) -> tuple[str, ...]:
    """Notes on a name that says another format than the content has.

    Raises:
        BadModelFile: a pickle under a name that users choose to avoid pickles.
    """
    if kind == "pickle" and suffix in (".safetensors", ".onnx"):
        raise BadModelFile(
            f"a pickle, though its name ends in {suffix}", "rename it if you want it read"
        )
    same = (suffix == ".safetensors") == (kind == "safetensors") and suffix != ".onnx"
    if same or not suffix:
        return ()
    return (f"the name ends in {suffix}, but the content is {kind}, and was read as that",)


def _others(container: object, content: object, depth: int = 4) -> Iterator[nn.Module]:
    """The modules of the models that a checkpoint holds beside the one that was chosen."""
    if container is content:
        return
    if isinstance(container, nn.Module):
        with suppress(Exception):  # what cannot be gone through is not left out
            yield from [module for _, module in every_module(container)]
    elif isinstance(container, dict) and depth:
        for value in dict.values(container):
            yield from _others(value, content, depth - 1)


def read_inputs(path: FilePath) -> Any:
    """Read the arguments of a call that ``torch.save`` wrote: a tensor, or a tuple or dict of
    tensors and plain values.

    Raises:
        BadModelFile: no such file, or something else in it.
    """
    with _opened(path) as file:
        kind, _ = kind_of(file, Path(path))
        if kind not in ("torch.save", "pickle"):
            raise BadModelFile(f"{kind}, not the inputs of a network", "save them with torch.save")
        loaded = _load_safely(file, kind, NOTHING, printable(path), False)
        content = loaded.content
        if not isinstance(content, Tensor | tuple | list | Mapping):
            raise BadModelFile(
                f"a {type(content).__name__}, not the inputs of a network",
                "save a tensor, tuple or dict",
            )
        _check_leaves("the inputs", [content], {})
        tensors = [value for value in tree_leaves(content) if isinstance(value, Tensor)]
        _check_tensors([("an input", tensor) for tensor in tensors], loaded.most_bytes)
        with refusing("has no numbers that can be read: ", "give others"):  # meta, or of 8 bits
            finite = all(bool(tensor.isfinite().all()) for tensor in tensors)
        if not finite:
            raise BadModelFile("has numbers that are not finite", "give others")
    if isinstance(content, list):
        return tuple(content)
    return content


LAZY = "torch.nn.parameter.UninitializedParameter"
"""The class of weights that are not initialised yet."""
MOST_EXPANDED = 2**26
"""The most elements of all tensors beyond those stored (a stride of 0 repeats them)."""
MOST_LEAVES = 10**7
"""The most values in lists, dicts and tuples of a module, or of a state dict's metadata."""


def _load_safely(
    file: BinaryIO,
    kind: str,
    allowed: Allowed,
    name: str,
    inert: bool,
) -> Loaded:
    """Load a file of torch.save, and refuse names that are not allowed unless ``inert``."""
    loaded = load(file, kind == "torch.save", allowed)
    if LAZY in loaded.foreign:
        raise BadModelFile(
            "holds lazy modules whose weights do not exist yet",
            "run one batch through the network, and save it again",
        )
    unread = loaded.content is None and loaded.failure is None
    if loaded.foreign and (unread or not inert):
        raise _not_allowed(loaded, name, allowed)
    if loaded.failure is not None:
        raise loaded.failure
    return loaded


@refusing("", "put the package of its classes on PYTHONPATH")
def _load_trusted(file: Any, kind: str) -> object:
    """Load a pickle or a torch.export program, running any code in it, because the user said
    ``trust``.

    Raises:
        BadModelFile: it cannot be loaded.
    """
    with warnings.catch_warnings(action="ignore"):
        if kind == "pt2":
            return dict(torch.export.load(file).state_dict)
        return torch.load(file, map_location="cpu", weights_only=False)


def _not_allowed(loaded: Loaded, name: str, allowed: Allowed) -> BadModelFile:
    """The error for classes that are not allowed, with every remedy."""
    names = loaded.foreign
    if any(other.startswith("torch.ao.nn.") for other in names):  # no name would make them readable
        return BadModelFile(
            "holds quantised modules, which are not read", "save the network before it is quantised"
        )
    earlier = [
        other for other in names if other.startswith("construct.") and not can_be_allowed(other)
    ]
    if earlier:
        what = f"holds {one_line(', '.join(earlier))}, of another version of this project"
        reads = "model=Net(), its network, or layers=True reads its tensors"
        return BadModelFile(what, reads, option="--model-file with its network reads its tensors")
    what = f"holds classes that are not allowed: {one_line(', '.join(names))}"
    if loaded.failure is not None:
        return BadModelFile(
            f"{what}; {loaded.failure.what}", loaded.failure.remedy, loaded.failure.option
        )
    alone = "save its state dict"
    if inside := model_paths(loaded.content):
        what = f"the model is not at its top: {inside}; the file {what}"
        alone = "save that alone, from a program where its classes can be imported"
    remedy = f"give its network with model=Net(), or {alone}"
    option = f"give its network with --arch or --model-file, or {alone}"
    given = [*allowed.exact, *allowed.packages]
    choices = [*dict.fromkeys([*given, *allow_options(names)])]
    if len(choices) > len(given):
        trusting = "; or, if you trust these packages, whose code then may run: "
        remedy += f"{trusting}construct.load({name!r}, allow={choices!r})"
        flags = [f" --allow {shlex.quote(choice)}" for choice in choices]
        option += f"{trusting}python -m construct.from_conv {shlex.quote(name)}{''.join(flags)}"
    elif allowed.packages:
        what += f", which {', '.join(allowed.packages)} does not define as a class"
    return BadModelFile(what, remedy, option=option)


def _checked_content(content: Any, loaded: Loaded) -> nn.Module | dict[str, Tensor]:
    """Check the content: a file may hold allowed classes with attributes that contradict each
    other.
    """
    if is_module(content):
        # attributes may be missing, or of any type at all
        with refusing("its layers contradict themselves: "):
            _check_module(content, loaded)
        return content
    if isinstance(content, dict) and content:
        return _checked_state(content, loaded)
    what = f"holds an object of class {type(content).__name__}, not a model"
    if inside := model_paths(loaded.content):
        raise BadModelFile(f"{what}; {inside}", "save that alone")
    raise BadModelFile(what, "save the nn.Module, or its state dict")


def _checked_state(content: dict[str, Any], loaded: Loaded) -> dict[str, Tensor]:
    """A state dict of plain tensors, with its metadata."""
    state: Any = OrderedDict(dict.items(content))
    for key, value in state.items():
        if not all(key.split(".")):
            raise BadModelFile(
                f"a tensor is named {key!r:.80}, which no path is",
                "save the state dict of a module",
            )
        if isinstance(value, StandInTensor):
            state[key] = value.as_subclass(Tensor)
    metadata = getattr(content, "_metadata", None)
    if isinstance(metadata, dict):
        _check_leaves("the metadata", [metadata], {})
        state._metadata = metadata
    _check_tensors(state.items(), loaded.most_bytes)
    return state


def _check_module(model: nn.Module, loaded: Loaded) -> None:
    """Check every module of a network.

    Raises:
        BadModelFile: a module of a class that is not imported holds modules that only its class can
            find.
        ValueError: attributes of a layer contradict each other.
    """
    reached = checked_modules(model)
    tensors = []
    counts = {}
    for path, module in reached:
        loaded.put_back(module)
        _check_leaves(path or "the model", list(vars(module).values()), counts)
        tensors += [(path, t) for t in (*module._parameters.values(), *module._buffers.values())]
        if isinstance(module, MHSA):
            _check_attention(module, path)
        if isinstance(module, StandIn) and "w_key_pos" in module._parameters:
            raise BadModelFile(
                f"a {type(module).__name__} is an attention layer of a class of its own",
                "allow its class",
            )
    _check_tensors(tensors, loaded.most_bytes)
    model.state_dict()
    known = {id(module) for _, module in reached}
    lost = any(is_module(module) and id(module) not in known for module in loaded.modules)
    for path, module in model.named_modules():  # which raises if the file has replaced it
        if lost and isinstance(module, StandIn) and module.lost:
            what = f"{path or 'the model'}: a {type(module).__name__} is stored in a way of its own"
            raise BadModelFile(f"{what}, and may hold modules", "allow its class")


def _check_leaves(name: str, values: Iterable[object], counts: dict[int, int]) -> None:
    """Check that values in containers are not too many, each counted as often as it is reached, as
    messages and copies do.
    """

    def leaves(value: object) -> int:
        if isinstance(value, ConvGeometry):
            value = vars(value)
        if isinstance(value, dict):
            items = dict.values(value)
        elif isinstance(value, list | tuple):
            items = value
        else:
            return 1
        if id(value) not in counts:
            counts[id(value)] = 1  # it may hold itself
            counts[id(value)] += sum(map(leaves, items))
        return counts[id(value)]

    try:
        count = sum(map(leaves, values))
    except RecursionError:
        count = math.inf
    if count > MOST_LEAVES:
        what = "its lists are nested too deep or hold each other, and have"
        raise BadModelFile(f"{printable(name)}: {what} {count:.3g} values", "save the state dict")


def _check_tensors(tensors: Iterable[tuple[str, Any]], most_bytes: float) -> None:
    """Check that tensors are plain ones, no larger than a file can hold, and not much larger than
    what is stored of them.

    Raises:
        BadModelFile: they are not.
    """
    expanded = 0
    sizes = {}
    for name, tensor in tensors:
        if not isinstance(tensor, Tensor) or is_lazy(tensor):
            continue
        _require_plain(tensor)
        if tensor.is_meta:
            continue
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        stored = storage.nbytes() // tensor.element_size()
        expanded += max(0, tensor.numel() - stored)
        if expanded > MOST_EXPANDED:
            raise BadModelFile(
                f"{printable(name)}: a tensor of shape {tuple(tensor.shape)} repeats the {stored} numbers that are stored",
                "save it with .contiguous() if you mean that",
            )
    if sum(sizes.values()) > most_bytes:  # its pickle called a tensor's class, which allocates
        raise BadModelFile("its tensors need more bytes than the file has", RESAVE)


def _require_plain(tensor: Tensor) -> None:
    if isinstance(tensor, StandInTensor):
        raise BadModelFile(
            f"its tensors are of a class of their own, {type(tensor).__name__}",
            "allow it, or save the state dict",
        )
    if tensor.is_quantized:
        raise BadModelFile(
            "holds quantised tensors, which are not read",
            "save the network before it is quantised",
        )
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else "sparse"
        raise BadModelFile(
            f"holds {kind} tensors, which are not read: make plain ones of them",
            "save it again",
        )


def _check_attention(layer: MHSA, path: str) -> None:
    """Check every part of an attention layer by building it again from them.

    Raises:
        ValueError: a part is missing or does not fit.
    """
    if FROZEN in vars(layer):
        raise ValueError(f"{path}: a file cannot say where heads look but by v and w_key_pos")
    if any(type(weight) is not int for weight in layer.radix or ()):
        raise ValueError(f"{path}: its radix is {layer.radix!r}, not whole numbers")
    tensors = {**layer._parameters, **layer._buffers}
    record = {"kind": "MHSA", "radix": layer.radix, "encoding": layer._encoding}
    record |= vars(layer.geometry)
    rebuilt = layer_of("", tensors, record, execution=layer._execution)
    if rebuilt.heads != layer.heads:
        raise ValueError(f"{path}: says {layer.heads!r} heads, has {rebuilt.heads}")
