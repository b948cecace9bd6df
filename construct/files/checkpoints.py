"""Finds the model in a training checkpoint, and strips the prefixes that wrappers put on its names."""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from construct.errors import BadModelFile, one_line
from construct.files.torch_files import is_module
from construct.weights import NAMES

KEYS = (
    *("state_dict", "model_state_dict", "model", "net", "network", "module", "params", "weights", "generator"),
    *("model_ema", "ema_state_dict", "state_dict_ema", "params_ema", "ema"),
)
"""Keys of the model in a checkpoint; the first one present is used, unless the user names one."""

PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.")
"""Prefixes that wrappers (DataParallel, torch.compile, training frameworks) put on every name."""
WRAPPERS = ("module", "_orig_mod")
"""Path components that they insert where parts of a network are wrapped."""
AVERAGED = "n_averaged"
"""The counter that ``torch.optim.swa_utils.AveragedModel`` keeps next to the averages, ``module.*``."""


def unwrap(content: object, chosen: str | None = None) -> tuple[object, tuple[str, ...]]:
    """The module or state dict in a checkpoint, and notes on what was done.

    ``chosen`` is the key of the model, or keys with slashes between them; by default the first of ``KEYS``.

    Raises:
        BadModelFile: a dict that holds neither, or not the chosen key.
    """
    notes: list[str] = []
    path: list[str] = []
    parts = _parts(content, chosen)
    while isinstance(content, dict) and content and len(path) < 4:
        items = dict(dict.items(content))  # attributes of an OrderedDict may hide its methods
        if not parts and _is_state(items):
            break
        key = parts.pop(0) if parts else _key_of(items)
        if key is None:
            content, others = _tensors_in(content, items)
            notes.append(f"no tensors, and so read only if a network's own loading asks for them: {others}")
            break
        models = [k for k in items if k != key and isinstance(k, str) and _holds_model(items[k])]
        others = [k for k in items if k != key and k not in models]
        path.append(key)
        note = f"a checkpoint: its key {'/'.join(path)!r} was used"
        note += f", and not {_listed(models)} (the option key chooses)" if models else ""
        notes.append(note + (f"; ignored: {_listed(others)}" if others else ""))
        content = items[key]
    return content, tuple(notes)


def _parts(content: object, chosen: str | None) -> list[str]:
    """The keys of the user's choice, each of which must lead on."""
    if chosen is None:
        return []
    for parts in ([chosen], chosen.split("/")):
        inner: Any = content
        for part in parts:
            inner = dict(dict.items(inner)).get(part) if isinstance(inner, dict) else None
        if inner is not None:
            return parts
    keys = f"; it has {_listed(list(dict.keys(content)))}" if isinstance(content, dict) else ""
    raise BadModelFile(f"it has no key {chosen!r:.80}{keys}", "name a key of the checkpoint")


def _tensors_in(content: dict[Any, Any], items: Mapping[Any, Any]) -> tuple[dict[str, Tensor], str]:
    """The tensors of a state dict that holds other things, too, as ``_values``; and the names of these."""
    tensors = OrderedDict((k, v) for k, v in items.items() if isinstance(k, str) and isinstance(v, Tensor))
    if not tensors:
        keys = list(items)
        what = f"a dict with the keys {_listed(keys[:4])}{', ...' if len(keys) > 4 else ''}"
        if place := model_paths(content):
            raise BadModelFile(f"{what}; {place}", "choose one with key=", option="choose one with --key")
        raise BadModelFile(f"{what}, but not a state dict", "save the state dict")
    others = [k for k in items if k not in tensors]
    if plain := [k for k in others if str(k).rpartition(".")[2] in ("weight", "bias", *NAMES)]:
        raise BadModelFile(f"{plain[0]!r:.80} is no tensor", "save the state dict of a module")
    if isinstance(content, OrderedDict) and "_metadata" in vars(content):
        tensors._metadata = vars(content)["_metadata"]  # type: ignore[attr-defined]
    tensors._values = {key: items[key] for key in others if isinstance(key, str) and _is_simple(items[key])}  # type: ignore[attr-defined]
    return tensors, _listed(others)


def _is_simple(value: object) -> bool:
    """Whether a value consists of tensors, numbers, texts and containers of them: an object may be a stand-in."""
    pending, known = [value], set[int]()
    while pending:
        inner: Any = pending.pop()
        if id(inner) in known:
            continue
        known.add(id(inner))
        if isinstance(inner, dict):
            pending += [*dict.keys(inner), *dict.values(inner)]
        elif isinstance(inner, list | tuple | set):
            pending += inner
        elif not (isinstance(inner, Tensor | bytes | complex | torch.dtype | torch.device) or _is_plain(inner)):
            return False
    return True


def _listed(keys: list[Any]) -> str:
    return one_line(", ".join(repr(key)[:60] if _is_plain(key) else type(key).__name__ for key in keys), 200)


def _is_plain(key: object) -> bool:
    return key is None or type(key) in (str, int, float, bool)


def _is_state(items: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) and isinstance(value, Tensor) for key, value in items.items())


def _key_of(items: Mapping[Any, Any]) -> str | None:
    good = [key for key, value in items.items() if isinstance(key, str) and _holds_model(value)]
    return next((key for key in KEYS if key in good), good[0] if len(good) == 1 else None)


def _holds_model(value: object, depth: int = 3) -> bool:
    if is_module(value):
        return True
    if not isinstance(value, dict) or not value:
        return False
    items = dict(dict.items(value))
    if any(isinstance(inner, Tensor) for inner in items.values()) and all(isinstance(key, str) for key in items):
        return True
    return depth > 0 and any(key in items and _holds_model(items[key], depth - 1) for key in KEYS)


def model_paths(content: object) -> str:
    """Where a file's content holds its models, in words; empty if one is at the top, or there is none."""
    models: list[str] = []
    level: list[tuple[str, object]] = [("", content)]
    for _ in range(4):
        deeper: list[tuple[str, object]] = []
        for path, value in level[:1000]:
            if kind := _kind_of(value):
                models.append(f"{path} holds a {kind}")
            elif isinstance(value, dict):
                keys = [key for key in dict.keys(value) if _is_plain(key)]
                deeper += [(f"{path or 'its entry '}[{key!r:.60}]", dict.get(value, key)) for key in keys]
            elif isinstance(value, tuple | list):
                deeper += [(f"{path or 'its entry '}[{n}]", inner) for n, inner in enumerate(value[:1000])]
        level = deeper
    return "" if _kind_of(content) else one_line("; ".join(models[:3]))


def _kind_of(value: object) -> str:
    """What an object is: a module or a state dict; empty if neither."""
    if is_module(value):
        return f"module of class {type(value).__name__}"
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in dict.keys(value)):
        return ""
    # Judged by names, as an optimizer's moments of one parameter are a dict of tensors, too.
    names = [key for key, inner in dict.items(value) if isinstance(inner, Tensor)]
    weights = [name.rpartition(".")[2].startswith(("weight", "original", "w_key_pos")) for name in names]
    return "state dict" if any("." in name for name in names) or any(weights) else ""


def renamings(names: Collection[str], wanted: Collection[str]) -> Iterator[tuple[dict[str, str], tuple[str, ...]]]:
    """The names of a state dict as they are, then without prefixes that wrappers put there: new → old; and notes on what was done.

    ``wanted`` are the names in the network.
    """
    old = {name: name for name in names}
    yield old, ()
    notes: tuple[str, ...] = ()
    if AVERAGED in old and AVERAGED not in wanted and all(k == AVERAGED or k.startswith("module.") for k in old):
        old = {key: name for key, name in old.items() if key != AVERAGED}
        notes = (f"ignored: {AVERAGED!r}, the counter of an average",)
    removed, known = "", {key.partition(".")[0] for key in wanted}
    while old and not known & {key.partition(".")[0] for key in old}:
        prefix = next((p for p in PREFIXES if all(key.startswith(p) and key != p for key in old)), None)
        if prefix is None:
            break
        old = {key.removeprefix(prefix): name for key, name in old.items()}
        removed += prefix
        yield old, (*notes, f"the prefix {removed!r} was removed from every name")
    bare = {".".join(part for part in key.split(".") if part not in WRAPPERS): name for key, name in old.items()}
    if bare.keys() != old.keys() and len(bare) == len(old):
        notes += (f"the prefix {removed!r} was removed from every name",) if removed else ()
        yield bare, (*notes, "the names of wrappers were taken out of its names")
