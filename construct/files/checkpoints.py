"""Finds the model in a training checkpoint, and strips the prefixes that wrappers put on its names."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor

from construct.errors import BadModelFile, one_line
from construct.files.torch_files import is_module
from construct.weights import NAMES

KEYS = (
    "state_dict model_state_dict model net network module params weights generator "
    "model_ema ema_state_dict state_dict_ema params_ema ema"
).split()
"""Keys of the model in a checkpoint; the first one present is used, unless the user names one."""

PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.")
"""Prefixes that wrappers (DataParallel, torch.compile, training frameworks) put on every name."""
WRAPPERS = ("module", "_orig_mod")
"""Path components that they insert where parts of a network are wrapped."""

AVERAGED = "n_averaged"
"""The counter that ``torch.optim.swa_utils.AveragedModel`` keeps beside the averages, ``module.*``."""


def unwrap(content: object, chosen: str | None = None) -> tuple[object, list[str], dict[str, Any]]:
    """The module or state dict in a checkpoint, notes on what was done, and what the state dict
    holds beside tensors, as modules' extra state.

    ``chosen`` is the key of the model, or keys with slashes between them; by default the first of
    ``KEYS``.

    Raises:
        BadModelFile: a dict that holds neither, or not the chosen key.
    """
    notes = []
    path = []
    values = {}
    keys = _chosen_keys(content, chosen)
    while isinstance(content, dict) and content and len(path) < 4:
        items = dict(dict.items(content))  # attributes of an OrderedDict may hide its methods
        models = [key for key, x in items.items() if isinstance(key, str) and _holds_model(x)]
        keys = keys or [key for key in KEYS if key in models][:1]
        if not keys and len(models) == 1:
            keys = models
        if not keys:
            content, values, others = _tensors_in(content, items)
            if others:
                what = "no tensors, and so read only if a network's own loading asks for them"
                notes.append(f"{what}: {_listed(others)}")
            break
        key = keys.pop(0)
        path.append(key)
        note = f"a checkpoint: its key {'/'.join(path)!r} was used"
        notes.append(f"{note}; it has {_listed(items)} (the option key chooses)")
        content = items[key]
    return content, notes, values


def _chosen_keys(content: object, chosen: str | None) -> list[str]:
    """The keys of the user's choice, each of which must lead on."""
    if chosen is None:
        return []
    for keys in ([chosen], chosen.split("/")):
        inner: Any = content
        for key in keys:
            inner = dict.get(inner, key) if isinstance(inner, dict) else None
        if inner is not None:
            return keys
    what = f"it has no key {chosen!r:.80}"
    if isinstance(content, dict):
        what += f"; it has {_listed(dict.keys(content))}"
    raise BadModelFile(what, "name a key of the checkpoint")


def _tensors_in(
    content: dict[Any, Any], items: Mapping[Any, Any]
) -> tuple[dict[str, Tensor], dict[str, Any], list[Any]]:
    """The tensors of a state dict that may hold other things, too; what of these can be used; and
    the names of all of these.
    """
    tensors: Any = OrderedDict(
        (k, v) for k, v in items.items() if isinstance(k, str) and isinstance(v, Tensor)
    )
    if not tensors:
        what = f"a dict with the keys {_listed(items)}"
        if places := model_paths(content):
            raise BadModelFile(
                f"{what}; {places}", "choose one with key=", option="choose one with --key"
            )
        raise BadModelFile(f"{what}, but not a state dict", "save the state dict")
    others = [key for key in items if key not in tensors]
    for key in others:
        if str(key).rpartition(".")[2] in ("weight", "bias", *NAMES):
            raise BadModelFile(f"{key!r:.80} must be a tensor", "save the state dict of a module")
    tensors._metadata = getattr(content, "_metadata", None)
    values = {key: items[key] for key in others if isinstance(key, str) and _is_simple(items[key])}
    return tensors, values, others


_SIMPLE = Tensor | bytes | complex | torch.dtype | torch.device


def _is_simple(value: object) -> bool:
    """Whether a value consists of tensors, numbers, texts and containers of them: an object may be
    a stand-in.
    """
    pending: list[Any] = [value]
    known = set()
    for inner in pending:  # grows on the way, and keeps alive what it holds
        if id(inner) in known:
            continue
        known.add(id(inner))
        if isinstance(inner, dict):
            pending += dict.items(inner)
        elif isinstance(inner, list | tuple | set):
            pending += inner
        elif not (isinstance(inner, _SIMPLE) or _is_plain(inner)):
            return False
    return True


def _listed(keys: Iterable[Any]) -> str:
    return one_line(
        ", ".join(repr(key)[:60] if _is_plain(key) else type(key).__name__ for key in keys), 200
    )


def _is_plain(key: object) -> bool:
    return key is None or type(key) in (str, int, float, bool)


def _holds_model(value: object, depth: int = 3) -> bool:
    """Whether a value is a model, or has one under one of ``KEYS``."""
    if _kind_of(value):
        return True
    if not isinstance(value, dict) or depth == 0:
        return False
    return any(_holds_model(dict.get(value, key), depth - 1) for key in KEYS)


def model_paths(content: object) -> str:
    """Where a file's content holds its models, in words; empty if one is at the top, or there is
    none.
    """
    # Not deeper: an optimizer's moments of one parameter are a dict of tensors, too.
    outer = _entries("its entry ", content)
    inner = (entry for path, container in outer for entry in _entries(path, container))
    models = [
        f"{path} holds a {kind}"
        for path, value in islice(chain(outer, inner), MOST_ENTRIES)
        if (kind := _kind_of(value))
    ]
    return one_line("; ".join(models[:3]))


MOST_ENTRIES = 1000
"""The most entries of a container, and of all, in which models are looked for."""


def _entries(path: str, container: object) -> list[tuple[str, object]]:
    """The values in a dict, list or tuple that is no model, with their paths."""
    items = []
    if _kind_of(container):
        return []
    if isinstance(container, dict):
        items = list(dict.items(container))
    elif isinstance(container, tuple | list):
        items = list(enumerate(container))
    return [
        (f"{path}[{key!r:.60}]", value) for key, value in items[:MOST_ENTRIES] if _is_plain(key)
    ]


def _kind_of(value: object) -> str:
    """What an object is: a module or a state dict; empty if neither."""
    if is_module(value):
        return f"module of class {type(value).__name__}"
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in dict.keys(value)):
        return ""
    return "state dict" * any(isinstance(inner, Tensor) for inner in dict.values(value))


def renamings(state: Any, wanted: Collection[str]) -> Iterator[tuple[Any, list[str]]]:
    """A state dict as it is, then without prefixes that wrappers put before its names; and notes on
    what was done.

    ``wanted`` are the names in the network.
    """
    yield state, []
    state = _renamed(state, str)
    ignored = []
    if AVERAGED not in wanted and state.pop(AVERAGED, None) is not None:
        ignored = [f"ignored: {AVERAGED!r}, the counter of an average"]
    notes = ignored
    removed = ""
    while not _first_parts(state) & _first_parts(wanted) and (prefix := _common_prefix(state)):
        state = _renamed(state, methodcaller("removeprefix", prefix))
        removed += prefix
        notes = [*ignored, f"the prefix {removed!r} was removed from every name"]
        yield state, notes
    bare = _renamed(state, _without_wrappers)
    if bare.keys() != state.keys() and len(bare) == len(state):
        yield bare, [*notes, "the names of wrappers were taken out of its names"]


def _renamed(state: Any, rename: Callable[[str], str]) -> Any:
    """A copy of a state dict under other names, and its metadata under other paths."""
    renamed: Any = OrderedDict((rename(key), value) for key, value in state.items())
    entries = state._metadata.items()
    renamed._metadata = {rename(f"{path}.")[:-1]: entry for path, entry in entries}
    return renamed


def _without_wrappers(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _first_parts(names: Collection[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def _common_prefix(names: Collection[str]) -> str:
    """The prefix of a wrapper that every name has; empty if there is none."""
    for prefix in PREFIXES:
        if names and all(name.startswith(prefix) and name != prefix for name in names):
            return prefix
    return ""
