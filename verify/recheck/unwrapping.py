"""The checker's way into checkpoints: the one network among what training left around it, and its layers by certified name.

Nothing is guessed.  Of two networks in one file neither is taken, a prefix comes off only if every layer has it, and whatever is
found this way still has to have the digests that were certified.
"""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from verify.recheck.opcodes import Made, Rejected, is_module

DEEPEST = 4
"""Of dicts inside each other in which a network is looked for."""

PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.")
"""What DataParallel, torch.compile and training frameworks put in front of every name."""

_TENSORS = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter")
_CONTAINERS = ("dict", "collections OrderedDict", "list", "set", "collections Counter", "collections defaultdict")
_Layer = TypeVar("_Layer")


def network_in(root: Made) -> Made:
    """The module or state dict that a file holds.

    Raises:
        Rejected: there are several; all are named.
    """
    if is_module(root) or all(_is_tensor(value) for _, value in root.pairs):
        return root
    found = list(_networks(root, ()))
    if len(found) > 1:
        keys = ", ".join(repr("/".join(keys)) if keys else "the dict itself" for _, keys in found)
        raise Rejected(
            f"holds {len(found)} networks ({keys}), and nothing says which is meant: save one of them alone"[:500]
        )
    return found[0][0] if found else root


def tensors_of(network: Made) -> dict[str, Any]:
    """The entries of a state dict without the plain values (an epoch) and the containers that training put beside them."""
    entries = network.entries().items()
    return {name: value for name, value in entries if isinstance(value, Made) and value.kind not in _CONTAINERS}


def geometry_records(state_dict: Made) -> dict[str, dict[str, Any]]:
    """What the metadata that torch keeps beside a state dict say of the geometry of attention layers, by their paths."""
    metadata = (_by_text(state_dict.state) or {}).get("_metadata")
    records = {path: (_by_text(entry) or {}).get("geometry") for path, entry in (_by_text(metadata) or {}).items()}
    fields = {path: record.entries() for path, record in records.items() if isinstance(record, Made)}
    return {path: record for path, record in fields.items() if record.get("kind") == "MHSA"}


def _networks(value: Made, keys: tuple[str, ...]) -> Any:
    if is_module(value):
        yield value, keys
        return
    entries = _by_text(value)
    if entries is None or len(keys) > DEEPEST:
        return
    if any(_is_kernel(name, tensor) for name, tensor in entries.items()):
        yield value, keys
    for key, inner in entries.items():
        if isinstance(inner, Made) and not _is_tensor(inner):
            yield from _networks(inner, (*keys, key))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Made) and value.kind in _TENSORS


def _is_kernel(name: str, value: Any) -> bool:
    """Whether this may be of a convolution (the shape decides) or of an attention layer."""
    if not _is_tensor(value):
        return False
    data = value.args[0] if value.kind == _TENSORS[1] and value.args else value
    shape = data.args[2] if isinstance(data, Made) and isinstance(data.args, tuple) and len(data.args) > 2 else ()
    last = name.rpartition(".")[2]
    return last == "w_key_pos" or (
        isinstance(shape, tuple) and len(shape) > 2 and last.startswith(("weight", "original"))
    )


def _by_text(value: Any) -> dict[str, Any] | None:
    try:
        return value.entries() if isinstance(value, Made) else None
    except Rejected:
        return None


def by_certified_name(
    layers: Mapping[str, _Layer], names: Collection[str], file: str, notes: list[str]
) -> Mapping[str, _Layer]:
    """Layers under the names that a certificate has for them; what was done to their own is added to the notes.

    Wrappers leave their name in those of a state dict (``module.0.weight``), and the command takes them off.

    Raises:
        Rejected: a layer is missing.
    """
    if all(name in layers for name in names):
        return layers
    taken, found = "", dict(layers)
    while prefix := next((p for p in PREFIXES if found and all(f"{path}.".startswith(p) for path in found)), ""):
        found = {f"{path}.".removeprefix(prefix).removesuffix("."): layer for path, layer in found.items()}
        taken += prefix
        if all(name in found for name in names):
            notes.append(f"{file}: the prefix {taken!r} was taken off every name")
            return found
    bare = {".".join(part for part in path.split(".") if part not in ("module", "_orig_mod")): path for path in layers}
    if len(bare) == len(layers) and all(name in bare for name in names):
        notes.append(f"{file}: the names of wrappers were taken out of its names")
        return {name: layers[path] for name, path in bare.items()}
    missing = next(name for name in names if name not in layers)
    if f"{missing}.parametrizations.weight".removeprefix(".") in layers:
        raise Rejected(f"layer {missing!r} is parametrized in {file}: {FOLDED}")
    raise Rejected(f"layer {missing!r} is missing in a weight file, {file}")


FOLDED = "the certificate speaks of its folded weight, and to recheck that takes a file that holds it (fold it, and save again)"
