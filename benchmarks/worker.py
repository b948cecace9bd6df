"""A process that times the layers of networks with the ``construct`` that it imports:
``worker.py THREADS``.

:mod:`benchmarks.compare` runs it as a file and not as a module: then ``construct`` comes from the
tree on PYTHONPATH, and the layers and the clock from this file's folder.  Each line of its input is
the name of a method of ``Layers`` with its arguments.
"""

import json
import sys

import torch
from shapes import NETWORKS  # from this file's folder
from timing import Layers


def main() -> None:
    """Answer until there are no more questions."""
    torch.set_num_threads(int(sys.argv[1]))
    layers = Layers(NETWORKS, convert=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(layers, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
