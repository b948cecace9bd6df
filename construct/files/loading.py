"""``construct.load``: reads a network, or its attention layers, from a file."""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from copy import copy
from itertools import chain
from typing import Any, Literal, overload

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from construct.attention import MHSA
from construct.builder import as_trainable_as, conv_to_mhsa
from construct.errors import BadModelFile, UnsupportedLayer, describe, naming, one_line, printable
from construct.files.checkpoints import renamings
from construct.files.destination import FilePath
from construct.files.layer_files import as_network, attention_in, layer_of, records_in
from construct.files.reading import ModelFile, read
from construct.modules.convolutions import is_convolution
from construct.modules.tied_weights import share_tied
from construct.modules.traversal import joined, substitute
from construct.modules.wrappers import unwrapped
from construct.weights import NAMES

log = logging.getLogger(__name__)


@overload
def load(
    path: FilePath,
    *,
    model: nn.Module | None = None,
    layers: Literal[False] = False,
    allow: Iterable[str] = (),
    trust: bool = False,
    key: str | None = None,
) -> nn.Module: ...
@overload
def load(
    path: FilePath,
    *,
    layers: Literal[True],
    allow: Iterable[str] = (),
    trust: bool = False,
    key: str | None = None,
) -> dict[str, MHSA]: ...
def load(
    path: FilePath,
    *,
    model: nn.Module | None = None,
    layers: bool = False,
    allow: Iterable[str] = (),
    trust: bool = False,
    key: str | None = None,
) -> nn.Module | dict[str, MHSA]:
    """Read a module from a file: this project's output, or any module made of torch.nn classes.  No
    code in the file is run.

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
        path: a file that ``construct.save``, ``torch.save`` or ``python -m construct.from_conv``
            wrote.
        model: the network that was saved, before or after conversion; it is not changed.  A state
            dict needs it; if the file holds a whole module, only its tensors are then read, and its
            classes need not be allowed.
        layers: return only the attention layers, which needs neither the network nor its classes.
        allow: more classes that the file may hold: exact names (``package.module.Class``), or
            packages, which allow every class that they define; these packages are imported.
        trust: whether the file may run code.
        key: the key of the model in a checkpoint that holds several (``"params_ema"``,
            ``"nets/g"``).

    Returns:
        The module, on the CPU; or a copy of ``model`` with the file's attention layers and all its
        tensors, in the file's dtypes; or, with ``layers``, every attention layer by path.  For a
        safetensors file of this project without ``model``: the bare attention layer, or bare
        modules with every attention layer at its path.

    Raises:
        BadModelFile: the file does not exist, is damaged, or holds no model or classes that are not
            allowed; or a state dict comes without ``model``, or does not fit it.
    """
    with naming(path):
        if layers and model is not None:
            raise BadModelFile("model and layers=True are two ways to read it", "give one of them")
    file = read(path, allow=allow, trust=trust, inert=layers or model is not None, key=key)
    with naming(path):
        if model is not None:
            content = loaded_into(unwrapped(model)[0], file, type(model).__name__)
        elif layers:
            content = _layers(file)
        else:
            content = _whole(file)
    for note in file.notes:
        log.warning("%s: %s", printable(path), note)
    return content


def _whole(file: ModelFile) -> nn.Module:
    content = file.content
    if isinstance(content, nn.Module):
        return content
    if file.kind == "safetensors" and (layers := _recorded(content)):
        return as_network(layers)
    remedy = "give model=Net(), the network that it is of"
    if attention_paths(content):
        remedy += ", or layers=True for its attention layers alone"
    raise BadModelFile("a state dict without its network", remedy)


def _layers(file: ModelFile) -> dict[str, MHSA]:
    content = file.content
    if isinstance(content, nn.Module):
        layers = attention_in(content)
    else:
        layers = _recorded(content)
        unrecorded = [path for path in attention_paths(content) if path not in layers]
        if unrecorded:
            raise BadModelFile(
                f"nothing is said of the geometry of its attention layer {unrecorded[0]!r}",
                "give model=Net(), its network",
            )
    if not layers:
        raise BadModelFile(
            "it holds no attention layer",
            "python -m construct.from_conv makes some of convolutions",
        )
    return layers


def _recorded(state: Mapping[str, Tensor]) -> dict[str, MHSA]:
    """The attention layers of a state dict whose geometry is recorded, by path."""
    return {path: layer_of(path, state, record) for path, record in records_in(state).items()}


def attention_paths(state: Mapping[str, Tensor]) -> list[str]:
    """The paths of the attention layers in a state dict."""
    parts = (key.rpartition(".") for key in state)
    return [path for path, _, name in parts if name == "w_key_pos"]


def loaded_into(model: nn.Module, file: ModelFile, name: str) -> nn.Module:
    """A copy of a network with the tensors of a file, loaded strictly and in the file's dtypes; the
    file gets notes on renamed tensors.

    Where the file has an attention layer in place of a convolution, the copy has one too: with the
    geometry in the file, or else that of the convolution.  ``name`` is the network's name, for
    messages.

    Raises:
        BadModelFile: they do not fit, or the network cannot be copied.
    """
    state: Any = file.content
    if isinstance(state, nn.Module):
        state = state.state_dict()
    entries: Any = OrderedDict({**state, **file.values})
    entries._metadata = getattr(state, "_metadata", {})
    try:
        return _load_state(model, entries, file.notes)
    except UnsupportedLayer as error:  # the network cannot be copied
        raise BadModelFile(one_line(error)) from error
    except Exception as error:  # a user's network may raise anything
        what = f"does not fit {printable(name)}: {describe(error)}"
        raise BadModelFile(what, "give the network that it was saved from") from error


def _load_state(model: nn.Module, state: Any, notes: list[str]) -> nn.Module:
    """Load a state dict, or its tensors alone, under the names that it has, or without the prefixes
    of wrappers.

    The first that torch takes is loaded, and ``notes`` say how it was renamed.
    """
    wanted = {*model.state_dict()}
    for path, module in model.named_modules(remove_duplicate=False):
        if is_convolution(module):
            wanted |= {joined(path, name) for name in NAMES}
    tensors = copy(state)
    for name, value in state.items():
        if not isinstance(value, Tensor):
            del tensors[name]
    failures = []
    for renamed, more_notes in chain(renamings(state, wanted), renamings(tensors, wanted)):
        try:
            network = _load_named(model, copy(renamed))
        except Exception as error:  # a user's network may raise anything
            failures.append(error)
        else:
            notes.extend(more_notes)
            return network
    raise failures[-1]


def _load_named(model: nn.Module, state: dict[str, Any]) -> nn.Module:
    """Load a state dict into a copy of a network; torch's own loading decides whether it fits."""
    network = substitute(model, _replacements(model, state))
    values = state.values()
    dtypes: Any = {x.dtype for x in values if isinstance(x, Tensor) and x.is_floating_point()}
    for key, tensor in (*network.named_parameters(), *network.named_buffers()):
        if is_lazy(tensor):
            continue
        if key in state:
            tensor.data = tensor.data.to(state[key].dtype)
        elif len(dtypes) == 1 and isinstance(tensor, nn.Parameter):
            tensor.data = tensor.data.to(*dtypes)  # a hook of the network may know its old name
    # Weights on the meta device have no storage: assign the file's tensors.
    on_meta = any(getattr(value, "is_meta", False) for value in network.state_dict().values())
    options = {"assign": True} if on_meta else {}  # a network's own method may not know the option
    network.load_state_dict(state, strict=True, **options)
    return network


def _replacements(model: nn.Module, state: dict[str, Any]) -> dict[nn.Module, MHSA]:
    """The file's attention layers, by the convolutions of the network in their places.

    Raises:
        ValueError: a module that is not a convolution, or one with another geometry.
    """
    records = records_in(state)
    modules = dict(model.named_modules(remove_duplicate=False))
    replacements = {}
    for path in attention_paths(state):
        conv = modules.get(path)
        if conv is None or isinstance(conv, MHSA):
            continue  # strict loading reports unknown paths
        where = path or "the layer"
        try:
            layer = conv_to_mhsa(conv)
            geometry = layer.geometry
            if path in records:
                stored = layer_of(path, state, records[path], bias=layer.bias is not None)
                layer = as_trainable_as(conv, stored)
        except (UnsupportedLayer, BadModelFile) as error:
            raise ValueError(f"{where}: {error}") from error
        for name, value in vars(geometry).items():
            stated = getattr(layer.geometry, name)
            if stated != value:
                raise ValueError(
                    f"{where}: {name} is {stated!r} in the file and {value!r} in the network"
                )
        replacements[conv] = layer
    share_tied(replacements)
    return replacements
