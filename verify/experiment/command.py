"""``python -m verify audit``: its arguments and its run, separate from `auditing` so that
``--help`` loads no torch.
"""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verify.experiment.audit_record import Audit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments to its parser."""
    layer = parser.add_argument_group("the layer")
    layer.add_argument(
        "file",
        metavar="FILE",
        help="with an attention layer of this project, or a stock one (torch.save)",
    )
    layer.add_argument(
        "--layer", metavar="PATH", help="which layer of the file; needed if it holds several"
    )
    experiment = parser.add_argument_group("the experiment")
    experiment.add_argument(
        "--grid",
        type=int,
        nargs="+",
        metavar="N",
        help="the spatial size of the input (default: the layer's only one, or four more than the kernel)",
    )
    experiment.add_argument(
        "--kernel",
        type=int,
        nargs="+",
        metavar="K",
        help="the largest kernel to look for (default: any)",
    )
    experiment.add_argument(
        "--channels", type=int, metavar="N", help="read so many channels at most (default: all)"
    )
    experiment.add_argument(
        "--seed", type=int, default=0, metavar="S", help="seed of the inputs (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the record as JSON")


def run(options: argparse.Namespace) -> "Audit":
    """Read the layer and audit it.

    Raises:
        ValueError: the file holds no such layer, or the layer cannot be audited on that grid.
        OSError: the file cannot be read.
    """
    from verify.experiment.auditing import audit
    from verify.experiment.stored_attention import attention_in

    if options.seed < 0:
        raise ValueError(f"a seed is 0 or more, not {options.seed}")
    layer = attention_in(options.file, options.layer)
    kernel = options.kernel
    if kernel is not None and len(kernel) == 1:
        kernel = kernel[0]
    # a stock attention takes inputs of one size
    grid = options.grid or getattr(layer, "grid", None)
    if grid is None:
        geometry = getattr(layer, "geometry", None)
        if geometry is None:
            raise ValueError(
                "the file states no kernel size for the layer (give --grid N ..., the spatial size of the input)"
            )
        grid = [span + 5 for span in geometry.span]
    channels = getattr(getattr(layer, "geometry", None), "in_channels", None)
    return audit(
        layer,
        tuple(grid),
        in_channels=channels,
        kernel_size=kernel,
        most_channels=options.channels,
        seed=options.seed,
    )
