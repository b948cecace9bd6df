"""``construct.load``: a network, or its attention layers, back from a file."""

import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Literal, overload

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from construct.attention import MHSA
from construct.builder import as_trainable_as, conv_to_mhsa
from construct.errors import BadModelFile, UnsupportedLayer, described, one_line, shown
from construct.files.checkpoints import fitting
from construct.files.layer_files import as_network, attention_in, layer_of, layers_of, records_in
from construct.files.reading import ModelFile, read
from construct.modules.convolutions import geometry_of, is_convolution
from construct.modules.tied_weights import share_tied
from construct.modules.wrappers import unwrapped
from construct.network import substitute
from construct.weights import GEOMETRY, NAMES

log = logging.getLogger(__name__)


@overload
def load(
    path: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    layers: Literal[False] = False,
    allow: Iterable[str] = (),
    trust: bool = False,
) -> nn.Module: ...
@overload
def load(
    path: str | os.PathLike[str], *, layers: Literal[True], allow: Iterable[str] = (), trust: bool = False
) -> dict[str, MHSA]: ...
def load(
    path: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    layers: bool = False,
    allow: Iterable[str] = (),
    trust: bool = False,
) -> nn.Module | dict[str, MHSA]:
    """Read a module: this project's output, or any module made of torch.nn classes.  Nothing that the file holds is run.

    >>> import tempfile, torch, construct
    >>> net = construct.convert(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3, stride=2), torch.nn.ReLU()))
    >>> path = tempfile.mkdtemp() + "/net.mhsa.pt"
    >>> torch.save(net.state_dict(), path)
    >>> {name: layer.stride for name, layer in construct.load(path, layers=True).items()}
    {'0': (2, 2)}
    >>> fresh = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3, stride=2), torch.nn.ReLU())
    >>> type(construct.load(path, model=fresh)[0]).__name__
    'MHSA'

    Args:
        path: of a file that ``construct.save``, ``torch.save`` or ``python -m construct.from_conv`` wrote.
        model: the network of a state dict, as it is before the conversion or after it; it is not changed.  A file that holds
            a whole module needs none.
        layers: whether only the attention layers are wanted, which takes no network.
        allow: what the file may name beyond torch.nn: classes by their exact names (``package.module.Class``), or packages,
            of which it may name every class that they define; these packages are imported.
        trust: whether the file may run code of its own.

    Returns:
        The module, on the CPU; or a copy of ``model`` with attention layers where the file has them, and all its tensors, in the
        file's number formats; or, with ``layers``, every attention layer by its path.  Of a safetensors file that this project
        wrote, without ``model``: the attention layer, or, of a network, every attention layer at its place.

    Raises:
        BadModelFile: there is no such file, it is no model, it is damaged, it holds classes that are not allowed, it is a state
            dict and no ``model`` is given, or it does not fit ``model``.
    """
    name = shown(str(path))
    if layers and model is not None:
        raise BadModelFile(f"{name}: model and layers=True are two ways to read it (give one of them)")
    file = read(path, allow=allow, trust=trust)
    notes = file.notes
    try:
        if model is not None:
            content, taken_off = restored(unwrapped(model)[0], file, type(model).__name__)
            notes += taken_off
        else:
            content = _layers(file) if layers else _whole(file)
    except BadModelFile as error:
        raise BadModelFile(f"{name}: {error}") from error
    for note in notes:
        log.warning("%s: %s", name, note)
    return content


def _whole(file: ModelFile) -> nn.Module:
    if isinstance(file.content, nn.Module):
        return file.content
    if GEOMETRY in file.metadata:
        return as_network(layers_of(file.content, records_in(file.content, file.metadata)))
    alone = ", or layers=True for its attention layers alone" if _places(file.content) else ""
    raise BadModelFile("a state dict without its network", f"give model=Net(), the network that it is of{alone}")


def _layers(file: ModelFile) -> dict[str, MHSA]:
    content = file.content
    if isinstance(content, nn.Module):
        found = attention_in(content)
    else:
        records = records_in(content, file.metadata)
        silent = [path for path in _places(content) if path not in records]
        if silent:
            raise BadModelFile(
                f"nothing is said of the geometry of its attention layer {silent[0]!r}", "give model=Net(), its network"
            )
        found = layers_of(content, records)
    if not found:
        raise BadModelFile("it holds no attention layer", "python -m construct.from_conv makes some of convolutions")
    return found


def _places(state: Mapping[str, Tensor]) -> list[str]:
    """The paths of the attention layers in a state dict, by the names of their tensors."""
    return [key.rpartition(".")[0] for key in state if key.rpartition(".")[2] == "w_key_pos"]


def restored(model: nn.Module, file: ModelFile, name: str) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy of a network with the tensors of a state dict, strictly, and in the state dict's own number formats.

    Where the state dict has an attention layer in the place of a convolution, the copy has one too: of the geometry that the
    file states, or, where it states none, of what the convolution is converted to.

    Args:
        model: the network, with convolutions or with attention layers.
        file: with a state dict.
        name: of the network, for messages.

    Returns:
        The copy, and what was done to names in the file, a sentence each.

    Raises:
        BadModelFile: the file holds a whole module, or they do not fit.
    """
    if isinstance(file.content, nn.Module):
        raise BadModelFile("holds a whole module, which needs no network", "leave model out")
    try:
        return _restored(model, file.content, records_in(file.content, file.metadata))
    except Exception as error:  # a user's network may raise anything
        what = str(error) if isinstance(error, BadModelFile) else described(error)
        raise BadModelFile(f"does not fit {shown(name)}: {what}", "give the network that it was saved from") from error


def _restored(model: nn.Module, state: dict[str, Tensor], records: dict[str, Any]) -> tuple[nn.Module, tuple[str, ...]]:
    modules = dict(model.named_modules(remove_duplicate=False))
    convolutions = [path for path, module in modules.items() if is_convolution(module)]
    attention = {f"{path}.{name}".removeprefix(".") for path in convolutions for name in NAMES}
    renamed, notes = fitting({key: key for key in state}, attention | model.state_dict().keys())
    fitted = OrderedDict((new, state[old]) for new, old in renamed.items())
    # The metadata speak of modules by path: they follow the tensors of these.
    paths = {new.rpartition(".")[0]: old.rpartition(".")[0] for new, old in renamed.items()}
    records = {new: records[old] for new, old in paths.items() if old in records}
    kept = getattr(state, "_metadata", None)
    kept = kept if isinstance(kept, Mapping) else {}
    metadata = {new: dict(kept[old]) for new, old in paths.items() if old in kept}
    for path, record in records.items():
        metadata.setdefault(path, {})[GEOMETRY] = record
    fitted._metadata = metadata  # type: ignore[attr-defined]

    replacements: dict[nn.Module, MHSA] = {}
    for path in _places(fitted):
        module = modules.get(path)
        if module is not None and not isinstance(module, MHSA):  # of what the network has not, strict loading tells
            replacements[module] = _in_place_of(module, path, fitted, records)
    share_tied(replacements)
    network = substitute(model, replacements)
    for key, tensor in (*network.named_parameters(), *network.named_buffers()):
        if key in fitted and not is_lazy(tensor):
            tensor.data = tensor.data.to(fitted[key].dtype)
    # Weights on the meta device are shapes alone: they become those of the file.
    hollow = any(isinstance(value, Tensor) and value.is_meta for value in network.state_dict().values())
    if told := _unlike(fitted, network):
        raise BadModelFile(told)
    network.load_state_dict(fitted, strict=True, assign=hollow)
    return network, notes


def _in_place_of(conv: nn.Module, path: str, state: Mapping[str, Tensor], records: Mapping[str, Any]) -> MHSA:
    """The attention layer of a file that stands where the network has a convolution.

    Raises:
        ValueError: there is no convolution, or one of another geometry.
    """
    try:
        geometry = geometry_of(conv)
        layer = as_trainable_as(conv, layer_of(path, state, records[path])) if path in records else conv_to_mhsa(conv)
    except (UnsupportedLayer, BadModelFile) as error:
        raise ValueError(f"{path or 'the layer'}: {error}") from error
    for name, value in vars(geometry).items():
        stated = getattr(layer.geometry, name)
        if stated != value:
            raise ValueError(f"{path or 'the layer'}: {name} is {stated!r} in the file and {value!r} in the network")
    return layer


def _unlike(state: Mapping[str, Tensor], model: nn.Module) -> str:
    """How the names in a state dict differ from those of its network, and what it does hold; nothing if they do not differ."""
    wanted = model.state_dict().keys()
    missing, unknown = [key for key in wanted if key not in state], [key for key in state if key not in wanted]
    if not missing and not unknown:
        return ""
    told = (
        [f"{len(missing)} of the network's {len(wanted)} tensors are missing in it{_some(missing)}"] if missing else []
    )
    told += [f"{len(unknown)} of its own are not in the network{_some(unknown)}"] if unknown else []
    holds = [f"{key} {'x'.join(map(str, value.shape)) or 'scalar'}" for key, value in state.items()]
    return f"{', and '.join(told)}; it holds {len(holds)} tensors{_some(holds, 6)}"


def _some(names: list[str], most: int = 3) -> str:
    return f" ({one_line(', '.join(names[:most]), 300)}{', ...' if len(names) > most else ''})"
