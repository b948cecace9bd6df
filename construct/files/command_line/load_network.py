"""The network of a command line and its inputs: read from a file, built if the file has none, its
convolutions listed and converted.
"""

from argparse import Namespace
from math import prod
from typing import Any

import torch
from torch import nn

from construct.attention import MHSA
from construct.builder import conv_to_mhsa
from construct.encoding.sharpness import ALPHA, alpha_for_tolerance
from construct.errors import BadModelFile, counted, naming, one_line, printable, require
from construct.files.command_line.architecture import module_from_file, named_module
from construct.files.command_line.bare_kernels import from_kernels, geometry_flags
from construct.files.loading import attention_paths, loaded_into
from construct.files.reading import ModelFile, read, read_inputs
from construct.modules.convolutions import geometry_of
from construct.network import Survey, survey

MOST_HEADS = 10_000
"""The most heads of one layer: exact arithmetic on a head takes a millisecond or more."""


def source_of(options: Namespace) -> ModelFile:
    """The file of the command line; where the user's code makes the network, only its tensors are
    read.
    """
    return read(
        options.model,
        allow=options.allow,
        trust=options.trust,
        inert=bool(options.arch or options.model_file),
        key=options.key,
    )


def network_of(source: ModelFile, options: Namespace) -> nn.Module:
    """The network of a file, built with the user's architecture or geometry if the file has none;
    the file gets notes on what was assumed.
    """
    content = source.content
    whole = isinstance(content, nn.Module)
    spec = options.arch or options.model_file
    flags = geometry_flags(options)
    with naming(source.path):
        if flags and (spec or whole):
            raise BadModelFile(
                f"{', '.join(flags)} is only for a state dict without a network", "leave it out"
            )
        if not spec:
            if whole:
                return content
            if not flags:
                what = "a state dict without its architecture: give --arch pkg.module:factory or --model-file net.py:Net"
                more = ", or --stride and --padding to convert its kernels alone"
                if earlier := len(attention_paths(content)):
                    layers = counted(earlier, "attention layer")
                    more = f" (it holds {layers} of an earlier conversion)"
                raise BadModelFile(what + more)
            return from_kernels(content, options, source.notes)
    build = module_from_file
    if options.arch:
        build = named_module
    model = build(spec)
    with naming(source.path):
        return loaded_into(model, source, spec)


def inputs_for(model: nn.Module, options: Namespace) -> tuple[list[Any], str] | None:
    """The inputs of a network, one per call, and their description; None if the command line gives
    none.

    They are read from a file, or normal, seeded, in the dtype of the network.
    """
    if options.example_inputs is not None:
        return [
            read_inputs(options.example_inputs)
        ], f"the example inputs in {printable(options.example_inputs)}"
    if options.input_size is None:
        return None
    what = f"{options.samples} random inputs of {'x'.join(map(str, options.input_size))}"
    shape = (1, *options.input_size)
    generator = torch.Generator().manual_seed(options.seed)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    # All inputs in float32, and for one at a time a copy and, for the bound, two in float64.
    require(
        (4 * options.samples + 20) * prod(shape), torch.device("cpu"), f"a run on {what}", who=""
    )
    return [
        torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)
        for _ in range(options.samples)
    ], what


def surveyed(model: nn.Module, name: object) -> Survey:
    """The convolutions of the network called ``name``; refuses a network with nothing to convert."""
    convolutions = survey(model)
    with naming(name):
        if not (convolutions.convertible or convolutions.refused or convolutions.earlier):
            raise BadModelFile("no convolution found", "give a network that has one")
        for layer, conv in convolutions.convertible.items():
            heads = geometry_of(conv).taps
            if heads > MOST_HEADS:
                raise BadModelFile(
                    f"{printable(layer) or 'the layer'} needs {heads} heads, one for each tap of its kernel, "
                    f"and this command takes at most {MOST_HEADS}",
                    "convert it in Python with construct.conv_to_mhsa",
                )
        if convolutions.refused and not convolutions.convertible:
            first, *others = convolutions.refused
            what = f"no convolution could be converted: {one_line(first)}"
            if others:
                what += f"; and {len(others)} more"
            raise BadModelFile(what)
    return convolutions


def converted_layer(conv: nn.Module, options: Namespace) -> MHSA:
    """The attention layer of a convolution, as sharp as the options say."""
    alpha = options.alpha or ALPHA
    if options.tolerance is not None:
        alpha = alpha_for_tolerance(options.tolerance, geometry_of(conv).dims)
    return conv_to_mhsa(conv, alpha=alpha, execution=options.execution, encoding=options.encoding)
