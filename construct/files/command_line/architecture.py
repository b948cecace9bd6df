"""Builds the network of a state dict from the user's code: ``--arch pkg.module:factory`` or
``--model-file net.py:Net``.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from construct.errors import BadModelFile, describe, printable
from construct.files.isolation import refusing


def named_module(spec: str) -> nn.Module:
    """The network that ``factory`` of ``pkg.module`` returns, called without arguments.

    Raises:
        BadModelFile: it cannot be imported, it fails, or it returns no module.
    """
    module, _, name = spec.rpartition(":")
    return _instantiated(spec, lambda: importlib.import_module(module), name)


def module_from_file(spec: str) -> nn.Module:
    """The network that ``Net`` of the file ``net.py`` returns, called without arguments.

    Raises:
        BadModelFile: no such name, it fails, or it returns no module.
    """
    place, _, name = spec.rpartition(":")
    path = Path(place).resolve()

    def run() -> Any:
        loader = importlib.util.spec_from_file_location("construct_architecture", path)
        if loader is None or loader.loader is None:
            raise ImportError(f"{path.name} must be a Python file")
        module = importlib.util.module_from_spec(loader)
        sys.modules[loader.name] = module  # dataclasses need it there
        sys.path.append(str(path.parent))  # last, so that installed packages take precedence
        try:
            loader.loader.exec_module(module)
        finally:
            sys.path.remove(str(path.parent))
        return module

    return _instantiated(spec, run, name)


def _instantiated(spec: str, source: Callable[[], Any], name: str) -> nn.Module:
    with refusing(f"{printable(spec)}: "):
        factory = source()
    try:
        for part in name.split("."):
            factory = getattr(factory, part)
        model: Any = factory
        if callable(factory) and not isinstance(factory, nn.Module):
            model = factory()
    except (Exception, SystemExit) as error:
        failure = f"{printable(spec)}: {describe(error)}".replace(
            "module 'construct_architecture'", "the file"
        )
        raise BadModelFile(
            failure, "name something that makes the network without arguments"
        ) from error
    if not isinstance(model, nn.Module):
        raise BadModelFile(
            f"{printable(spec)}: makes an object of class {type(model).__name__}, not an nn.Module"
        )
    on_meta = any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    if on_meta:
        return model
    return model.to("cpu")
