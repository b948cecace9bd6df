"""The small trained CNN that ships with the project: what `python -m construct.from_conv` converts
when given no model.

It reads a handwritten digit, (N, 1, 8, 8) with pixels in [0, 1], and returns (N, 10) logits. The
file holds a whole `nn.Sequential` of plain `torch.nn` classes. `examples/train_digits_cnn.py` made
it and says how well it reads.
"""

import pathlib

PATH: pathlib.Path = pathlib.Path(__file__).resolve().parent / "digits_cnn.pt"
INPUT_SIZE = (1, 8, 8)
