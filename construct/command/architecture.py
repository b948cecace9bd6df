"""The network that a state dict belongs to, from the user's own code.

This runs code, and only because the user named it: ``--arch pkg.module:factory`` or ``--model-file net.py:Net``.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from construct.errors import BadModelFile, described, shown
from construct.files.loading import restored
from construct.files.reading import ModelFile, regular_file

NEEDS_ARCHITECTURE = (
    "a state dict without its architecture: give --arch pkg.module:factory or --model-file net.py:Net, "
    "or --stride and --padding to convert its kernels alone"
)


def named_module(spec: str) -> nn.Module:
    """Call what ``pkg.module:factory`` names, without arguments.

    Raises:
        BadModelFile: there is no such thing, it fails, or it makes no module.
    """
    module, name = _split(spec, "pkg.module:factory")
    return _made(spec, lambda: importlib.import_module(module), name)


def module_from_file(spec: str) -> nn.Module:
    """Run the file of ``net.py:Net`` and call what is named, without arguments.

    Raises:
        BadModelFile: there is no such file or name, it fails, or it makes no module.
    """
    place, name = _split(spec, "net.py:Net")
    path = regular_file(place).resolve()

    def run() -> Any:
        loader = importlib.util.spec_from_file_location("construct_architecture", path)
        if loader is None or loader.loader is None:
            raise ImportError(f"{path.name} is no Python file")
        module = importlib.util.module_from_spec(loader)
        sys.modules[loader.name] = module  # dataclasses look themselves up there
        sys.path.append(str(path.parent))  # its neighbours can be imported; whatever is installed goes first
        try:
            loader.loader.exec_module(module)
        finally:
            sys.path.remove(str(path.parent))
        return module

    return _made(spec, run, name)


def with_state(model: nn.Module, file: ModelFile, spec: str) -> tuple[nn.Module, tuple[str, ...]]:
    """Load a state dict into its network, strictly, and in the state dict's own number formats; and say what was taken off.

    Raises:
        BadModelFile: they do not fit.
    """
    try:
        return restored(model, file, spec)
    except BadModelFile as error:
        raise BadModelFile(f"{shown(str(file.path))}: {error}") from error


def _split(spec: str, form: str) -> tuple[str, str]:
    place, colon, name = spec.rpartition(":")
    if not (place and colon and name):
        raise BadModelFile(f"{shown(spec)}: names no network (write {form})")
    return place, name


def _made(spec: str, source: Callable[[], Any], name: str) -> nn.Module:
    try:
        found = source()
        for part in name.split("."):
            found = getattr(found, part)
        model = found() if callable(found) and not isinstance(found, nn.Module) else found
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise BadModelFile(
            f"{shown(spec)}: {described(error)} (name something that makes the network without arguments)"
        ) from error
    if not isinstance(model, nn.Module):
        raise BadModelFile(f"{shown(spec)}: makes an object of class {type(model).__name__}, not an nn.Module")
    hollow = any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    return model if hollow else model.to(torch.device("cpu"))
