"""Finds the model in a training checkpoint, and strips the prefixes that wrappers put on its names."""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from construct.errors import BadModelFile, one_line
from construct.files.pickle_records import Container, Instance
from construct.weights import NAMES

KEYS = (
    *("state_dict", "model_state_dict", "model", "net", "network", "module", "params", "weights", "generator"),
    *("model_ema", "ema_state_dict", "state_dict_ema", "params_ema", "ema"),
)
"""Keys of the model in a checkpoint; the first one present is used."""

PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.")
"""Prefixes that wrappers (DataParallel, torch.compile, training frameworks) put on every name."""
WRAPPERS = ("module", "_orig_mod")
"""Path components that they insert where parts of a network are wrapped."""
AVERAGED = "n_averaged"
"""The counter that ``torch.optim.swa_utils.AveragedModel`` keeps next to the averages, ``module.*``."""


def unwrap(content: object, place: str = "") -> tuple[object, tuple[str, ...]]:
    """The module or state dict in a checkpoint, and notes on what was done; ``place`` is from :func:`model_paths`.

    Raises:
        BadModelFile: a dict that holds neither.
    """
    notes: list[str] = []
    path: list[str] = []
    while isinstance(content, dict) and content and not _is_state(content) and len(path) < 4:
        key = _key_of(content)
        if key is None:
            tensors = {k: v for k, v in content.items() if isinstance(k, str) and isinstance(v, Tensor)}
            if not tensors:
                keys = ", ".join(repr(k)[:60] for k in list(content)[:4]) + (", ..." if len(content) > 4 else "")
                what = f"a dict with the keys {one_line(keys)}"
                if place:
                    raise BadModelFile(f"{what}; {place}", "save that alone, or one of them")
                raise BadModelFile(f"{what}, but not a state dict", "save the state dict")
            others = [k for k in content if k not in tensors]
            if plain := [k for k in others if str(k).rpartition(".")[2] in ("weight", "bias", *NAMES)]:
                raise BadModelFile(f"{plain[0]!r:.80} is no tensor", "save the state dict of a module")
            notes.append(f"ignored, as they are no tensors: {_listed(others)}")
            if hasattr(content, "_metadata"):  # of a state dict
                tensors = OrderedDict(tensors)
                tensors._metadata = content._metadata  # type: ignore[attr-defined]
            content = tensors
            break
        others = [k for k in content if k != key]
        path.append(key)
        passed = f"; ignored: {_listed(others)}" if others else ""
        notes.append(f"a checkpoint: its key {'/'.join(path)!r} was used{passed}")
        content = content[key]
    return content, tuple(notes)


def _listed(keys: list[Any]) -> str:
    return one_line(", ".join(repr(key)[:60] for key in keys), 200)


def _is_state(content: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items())


def _key_of(content: Mapping[Any, Any]) -> str | None:
    good = [key for key, value in content.items() if isinstance(key, str) and _holds_model(value)]
    return next((key for key in KEYS if key in good), good[0] if len(good) == 1 else None)


def _holds_model(value: object, depth: int = 3) -> bool:
    if isinstance(value, nn.Module):
        return True
    if not isinstance(value, dict) or not value:
        return False
    if any(isinstance(inner, Tensor) for inner in value.values()) and all(isinstance(key, str) for key in value):
        return True
    return depth > 0 and any(key in value and _holds_model(value[key], depth - 1) for key in KEYS)


def model_paths(root: object) -> str:
    """Where a walked pickle holds its models, in words; empty if one is at the top, or there is none."""
    models: list[str] = []
    level: list[tuple[str, object]] = [("", root)]
    for _ in range(4):
        deeper: list[tuple[str, object]] = []
        for path, record in level[:1000]:
            if kind := _kind_of(record):
                models.append(f"{path} holds a {kind}")
            elif isinstance(record, Container) and record.kind in _DICTS:
                deeper += [(f"{path or 'its entry '}[{key!r:.60}]", value) for key, value in record.pairs()]
            elif isinstance(record, tuple) or (isinstance(record, Container) and record.kind == "list"):
                items = record if isinstance(record, tuple) else record.items
                deeper += [(f"{path or 'its entry '}[{number}]", value) for number, value in enumerate(items)]
        level = deeper
    return "" if _kind_of(root) else one_line("; ".join(models[:3]))


_DICTS = ("dict", "OrderedDict")


def _kind_of(record: object) -> str:
    """What a record represents: a module or a state dict; empty if neither."""
    if isinstance(record, Instance) and isinstance(record.state, Container) and "_modules" in record.state.items[::2]:
        return f"module of class {record.name.rpartition('.')[2]}"
    if isinstance(record, Container) and record.kind in _DICTS:
        if not all(isinstance(key, str) for key in record.items[::2]):
            return ""
        # Judged by names, as an optimizer's moments of one parameter are a dict of tensors, too.
        names = [key for key, value in record.pairs() if isinstance(value, Instance) and value.name == "tensor"]
        weights = [name.rpartition(".")[2].startswith(("weight", "original", "w_key_pos")) for name in names]
        return "state dict" if any("." in name for name in names) or any(weights) else ""
    return ""


def matched_names(names: Collection[str], wanted: Collection[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Strip wrapper prefixes from a state dict's names to match the network's (new → old); and notes on what was done."""
    notes: list[str] = []
    old = {name: name for name in names}
    if AVERAGED in old and AVERAGED not in wanted and all(k == AVERAGED or k.startswith("module.") for k in old):
        del old[AVERAGED]
        notes.append(f"ignored: {AVERAGED!r}, the counter of an average")
    removed, known = "", {key.partition(".")[0] for key in wanted}
    while old and not known & {key.partition(".")[0] for key in old}:
        prefix = next((p for p in PREFIXES if all(key.startswith(p) and key != p for key in old)), None)
        if prefix is None:
            break
        old = {key.removeprefix(prefix): name for key, name in old.items()}
        removed += prefix
    notes += [f"the prefix {removed!r} was removed from every name"] if removed else []
    bare = {".".join(part for part in key.split(".") if part not in WRAPPERS): name for key, name in old.items()}
    if not all(key in wanted for key in old) and len(bare) == len(old) and all(key in wanted for key in bare):
        old = bare
        notes.append("the names of wrappers were taken out of its names")
    return old, tuple(notes)
