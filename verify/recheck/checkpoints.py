"""Finds the network inside a checkpoint, and its layers under the certificate's names.

Nothing is guessed: two networks in one file are refused, and a prefix is removed only if every layer has it.  Digests are always
checked afterwards.
"""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from verify.recheck.pickles import PARAMETER, TENSOR, Pickled, Rejected, is_module

DEEPEST = 4
"""The depth of nested dicts to search for a network."""

PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.")
"""Prefixes that DataParallel, torch.compile and training frameworks add to every name."""

TENSORS = ("w_qry", "w_key", "w_key_pos", "u", "v", "w_val", "w_out", "b_out")
"""The tensors of an attention layer."""

_CONTAINERS = ("dict", "collections OrderedDict", "list", "set", "collections Counter", "collections defaultdict")
_Layer = TypeVar("_Layer")


def network_in(root: Pickled) -> Pickled:
    """The module or state dict in a file.

    Raises:
        Rejected: there are several; the message names them all.
    """
    if is_module(root) or all(_is_tensor(value) for _, value in root.pairs):
        return root
    networks = list(_networks(root, ()))
    if len(networks) > 1:
        keys = ", ".join(repr("/".join(keys)) if keys else "the dict itself" for _, keys in networks)
        raise Rejected(
            f"holds {len(networks)} networks ({keys}), and nothing says which is meant: save one of them alone"[:500]
        )
    return networks[0][0] if networks else root


def tensors_of(network: Pickled) -> dict[str, Any]:
    """The tensors of a state dict, without the plain values and containers that training adds.

    Raises:
        Rejected: something else is in a tensor's place.
    """
    entries = network.entries().items()
    tensors = {name: value for name, value in entries if isinstance(value, Pickled) and value.kind not in _CONTAINERS}
    if plain := [
        name
        for name, _ in entries
        if name not in tensors and str(name).rpartition(".")[2] in ("weight", "bias", *TENSORS)
    ]:
        raise Rejected(f"{plain[0]!r:.80} is no tensor")
    return tensors


def geometry_records(state_dict: Pickled) -> dict[str, dict[str, Any]]:
    """The geometry of attention layers by path, from the metadata that torch keeps with a state dict."""
    metadata = (_by_text(state_dict.state) or {}).get("_metadata")
    records = {path: (_by_text(entry) or {}).get("geometry") for path, entry in (_by_text(metadata) or {}).items()}
    fields = {path: record.entries() for path, record in records.items() if isinstance(record, Pickled)}
    return {path: record for path, record in fields.items() if record.get("kind") == "MHSA"}


def _networks(value: Pickled, keys: tuple[str, ...]) -> Any:
    if is_module(value):
        yield value, keys
        return
    entries = _by_text(value)
    if entries is None or len(keys) > DEEPEST:
        return
    if any(_is_kernel(name, tensor) for name, tensor in entries.items()):
        yield value, keys
    for key, inner in entries.items():
        if isinstance(inner, Pickled) and not _is_tensor(inner):
            yield from _networks(inner, (*keys, key))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Pickled) and value.kind in (TENSOR, PARAMETER)


def _is_kernel(name: str, value: Any) -> bool:
    if not _is_tensor(value):
        return False
    data = value.args[0] if value.kind == PARAMETER and value.args else value
    shape = data.args[2] if isinstance(data, Pickled) and isinstance(data.args, tuple) and len(data.args) > 2 else ()
    return may_be_a_kernel(name.rpartition(".")[2], shape if isinstance(shape, tuple) else ())


def may_be_a_kernel(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor's shape allows a convolution kernel, parametrized or not, or its name is an attention tensor's."""
    return name == "w_key_pos" or (len(shape) > 2 and name.startswith(("weight", "original")))


def _by_text(value: Any) -> dict[str, Any] | None:
    try:
        return value.entries() if isinstance(value, Pickled) else None
    except Rejected:
        return None


def by_certified_name(
    layers: Mapping[str, _Layer], names: Collection[str], file: str, notes: list[str]
) -> Mapping[str, _Layer]:
    """Layers under the certificate's names; renamings are added to the notes.

    Wrappers leave prefixes in a state dict (``module.0.weight``), which the command removes.

    Raises:
        Rejected: a layer is missing.
    """
    if all(name in layers for name in names):
        return layers
    removed, renamed = "", dict(layers)
    while prefix := next((p for p in PREFIXES if renamed and all(f"{path}.".startswith(p) for path in renamed)), ""):
        renamed = {f"{path}.".removeprefix(prefix).removesuffix("."): layer for path, layer in renamed.items()}
        removed += prefix
        if all(name in renamed for name in names):
            notes.append(f"{file}: the prefix {removed!r} was removed from every name")
            return renamed
    bare = {".".join(part for part in path.split(".") if part not in ("module", "_orig_mod")): path for path in layers}
    if len(bare) == len(layers) and all(name in bare for name in names):
        notes.append(f"{file}: the names of wrappers were taken out of its names")
        return {name: layers[path] for name, path in bare.items()}
    missing = next(name for name in names if name not in layers)
    if f"{missing}.parametrizations.weight".removeprefix(".") in layers:
        raise Rejected(f"layer {missing!r} is parametrized in {file}: {FOLDED}")
    raise Rejected(f"layer {missing!r} is missing in a weight file, {file}")


FOLDED = "the certificate speaks of its folded weight, and to recheck that takes a file that holds it (fold it, and save again)"
