"""A model inside what training left around it: the wrapping taken off, and said so."""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from construct.errors import BadModelFile, one_line
from construct.files.pickle_records import Held, Made

KEYS = (
    *("state_dict", "model_state_dict", "model", "net", "network", "module", "params", "weights", "generator"),
    *("model_ema", "ema_state_dict", "state_dict_ema", "params_ema", "ema"),
)
"""Where checkpoints keep their model; the first that is there is taken."""

PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.")
"""What wrappers (DataParallel, torch.compile, training frameworks) put in front of every name."""
WRAPPERS = ("module", "_orig_mod")
"""What they put into the names of what is inside, where parts of a network are wrapped."""
AVERAGED = "n_averaged"
"""The counter that ``torch.optim.swa_utils.AveragedModel`` keeps beside the averages, ``module.*``."""


def unwrap(content: object, name: str, place: str = "") -> tuple[object, tuple[str, ...]]:
    """The module or state dict inside a checkpoint, and what was done, a sentence each.

    Args:
        content: of the file.
        name: of the file.
        place: what :func:`whereabouts` says of it.

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
                told = (
                    f"; {place} (save that alone, or one of them)"
                    if place
                    else ", but not a state dict (save the state dict)"
                )
                raise BadModelFile(f"{name}: a dict with the keys {one_line(keys)}{told}")
            others = [repr(k)[:60] for k in content if k not in tensors]
            notes.append(f"passed over, as they are no tensors: {one_line(', '.join(others), 200)}")
            if hasattr(content, "_metadata"):  # what torch keeps beside a state dict
                tensors = OrderedDict(tensors)
                tensors._metadata = content._metadata  # type: ignore[attr-defined]
            content = tensors
            break
        others = [repr(k)[:60] for k in content if k != key]
        path.append(key)
        passed = f"; passed over: {one_line(', '.join(others), 200)}" if others else ""
        notes.append(f"a checkpoint: its key {'/'.join(path)!r} was used{passed}")
        content = content[key]
    return content, tuple(notes)


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


_Value = TypeVar("_Value")


def whereabouts(root: object) -> str:
    """Where the models are in a file that was walked, and not loaded; nothing if one is at the top, or there is none."""
    models: list[str] = []
    level: list[tuple[str, object]] = [("", root)]
    for _ in range(4):
        deeper: list[tuple[str, object]] = []
        for path, thing in level[:1000]:
            if kind := _kind_of(thing):
                models.append(f"{path} holds a {kind}")
            elif isinstance(thing, Held) and thing.kind in _DICTS:
                deeper += [(f"{path or 'its entry '}[{key!r:.60}]", value) for key, value in thing.pairs()]
            elif isinstance(thing, tuple) or (isinstance(thing, Held) and thing.kind == "list"):
                items = thing if isinstance(thing, tuple) else thing.items
                deeper += [(f"{path or 'its entry '}[{number}]", value) for number, value in enumerate(items)]
        level = deeper
    return "" if _kind_of(root) else one_line("; ".join(models[:3]))


_DICTS = ("dict", "OrderedDict")


def _kind_of(thing: object) -> str:
    """What a record is of: a module, or a state dict; nothing if it is neither."""
    if isinstance(thing, Made) and isinstance(thing.state, Held) and "_modules" in thing.state.items[::2]:
        return f"module of class {thing.name.rpartition('.')[2]}"
    if isinstance(thing, Held) and thing.kind in _DICTS:
        tensors = [isinstance(value, Made) and value.name == "tensor" for _, value in thing.pairs()]
        return "state dict" if any(tensors) and all(isinstance(key, str) for key in thing.items[::2]) else ""
    return ""


def fitting(state: dict[str, _Value], wanted: Collection[str]) -> tuple[dict[str, _Value], tuple[str, ...]]:
    """A state dict without the names of wrappers that keep it from fitting its network, and what was done, a sentence each.

    Args:
        state: the state dict, or any values under its names.
        wanted: the names in the network.
    """
    notes: list[str] = []
    if AVERAGED in state and AVERAGED not in wanted and all(k == AVERAGED or k.startswith("module.") for k in state):
        state = {key: value for key, value in state.items() if key != AVERAGED}
        notes.append(f"passed over: {AVERAGED!r}, how many were averaged")
    taken, known = "", {key.partition(".")[0] for key in wanted}
    while state and not known & {key.partition(".")[0] for key in state}:
        prefix = next((p for p in PREFIXES if all(key.startswith(p) and key != p for key in state)), None)
        if prefix is None:
            break
        state = {key.removeprefix(prefix): value for key, value in state.items()}
        taken += prefix
    notes += [f"the prefix {taken!r} was taken off every name"] if taken else []
    bare = {".".join(part for part in key.split(".") if part not in WRAPPERS): value for key, value in state.items()}
    if not all(key in wanted for key in state) and len(bare) == len(state) and all(key in wanted for key in bare):
        state = bare
        notes.append("the names of wrappers were taken out of its names")
    return state, tuple(notes)
