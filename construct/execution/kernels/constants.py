"""Tuned constants of the kernels: what was measured, on one core of an AMD EPYC (Zen 4, AVX-512, 1 MiB of second cache).

| constant | value | unit | shape | date |
|---|---|---|---|---|
"""

ONEDNN = 2**23
"""Multiplications of a product from which oneDNN's inner product is quicker than ``torch.mm``."""
DEEP = 96
"""Terms of a sum from which oneDNN is worth it even if what it makes has to be copied."""
COLUMNS = 2**20
"""Numbers of the tokens that im2col copies side by side at a time: 4 MiB of float32."""
QUERIES = 2**8
"""Queries of a block at the least: every product reads all weights."""
SHORT = 2**6
"""Queries of an image from which a product with channels first is worth it."""
NARROW = 2**6
"""Numbers of a run up to which all runs of a rectangle are copied in one step."""
COPY, TRANSPOSE, SCATTER = 0.09, 0.6, 0.3
"""Nanoseconds a number: a copy into columns, a weight turned on the way, and a product added to what it belongs to."""
SPREAD = 2**4
"""Channels from which a product is scattered with channels last."""
PRODUCTS = 2**19
"""Numbers that are made at a time to be scattered."""
DEPTHWISE = 2**18
"""Outputs of a block of a depthwise layer."""
LOOP = 2**4
"""Numbers that follow each other in memory from which a depthwise layer reads its input where it lies."""
KEPT = 2**23
"""Bytes of the workspace that each thread keeps from call to call."""
FEW = 2.5
"""Nanoseconds a number of the columns, divided by the columns of the product: what a product with few columns loses."""
TURNED = 2**9
"""Queries of an image from which the weights of a 1 × 1 layer are turned for a product with channels first."""
