"""Tuned constants of the kernels, in float32 on one core of an AMD EPYC (Zen 5, AVX-512, 1 MiB of second cache), 2026-11-26.

What a call took with half of a constant and with twice as much, by what it takes; nothing else at work, and two runs were alike to
0.03.  "grad" is forward and backward, "first" channels first.

| constant               | unit             | layer                            | half | twice |
|------------------------|------------------|----------------------------------|------|-------|
| ONEDNN                 | multiplications  | 64 → 384, 1 × 1 at 14²           | 0.65 | 1.00  |
| the same on Zen 4      |                  |                                  | 1.37 | 1.09  |
| FEW_COLUMNS            | columns          | 128 → 128, 3 × 3 at 28²: grad    | 1.06 | 0.98  |
| MIN_TERMS              | terms of a sum   | 64 → 64, 3 × 3 at 112²           | 1.00 | 1.00  |
| AT_ONCE                | numbers          | 64 → 64, 3 × 3 at 112²           | 1.05 | 1.06  |
| AT_ONCE                | numbers          | 64 → 3, 3 × 3 at 112²            | 1.00 | 1.00  |
| AT_ONCE                | numbers          | 96, 7 × 7 at 56²                 | 1.00 | 1.00  |
| QUERIES                | queries          | 512 → 512, 3 × 3 at 28²          | 1.00 | 1.00  |
| FEW_QUERIES            | queries          | 512 → 512, 3 × 3 at 7²: grad     | 1.95 | 1.03  |
| RECTANGLE              | numbers          | 16 → 16, 3 × 3 at 56²            | 0.93 | 1.00  |
| SCATTER_NS             | ns a number      | 32 → 3, transposed 4 × 4 at 112² | 1.00 | 0.99  |
| MIN_CHANNELS_LAST      | channels         | 64 → 24, 3 × 3 at 56²: grad      | 0.99 | 1.00  |
| MIN_CONTIGUOUS         | numbers          | 32, 3 × 3 at 112²                | 0.99 | 1.00  |
| MIN_QUERIES_TRANSPOSED | queries          | 256 → 64, 1 × 1 at 56²: first    | 0.98 | 0.99  |

Slabs without AVX-512, 64 → 64, 3 × 3 at 32² to 112², 2026-11-25: blocks of 2**16 numbers took 10 to 16 % longer than those of
2**17 to 2**19, which were alike to 7 %.  With MIN_SLAB_TERMS 64 in place of 96, 64 → 64, 3 taps at 4096, takes 0.91 of the
time, and 24 → 24, 3 × 3 at 56² with channels last, 0.78; with 48, 48 channels take 0.90, and 16, 3 × 3, 1.06.

COPY_NS, TRANSPOSE_NS and NARROW_PRODUCT_NS are weighed against SCATTER_NS alone; KEPT_BYTES is what AT_ONCE and its window take.
Without AVX-512 AT_ONCE is measured at 2**17 to 2**19 alone.
"""

ONEDNN = 2**23
"""Multiplications of a product from which oneDNN's inner product is quicker than ``torch.mm``."""
FEW_COLUMNS = 2**7
"""Columns of a product up to which oneDNN multiplies the transposes, if the left matrix lies transposed."""
MIN_TERMS = 96
"""Terms of a sum from which oneDNN's product is worth it, whose result is copied."""
MIN_SLAB_TERMS = 64
"""Terms of a sum from which a product of BLAS is worth it that is added to what is there, that of a slab of heads."""
AT_ONCE = 2**20
"""Numbers of float32 laid out or made at a time, 4 MiB: columns of im2col, products of col2im, outputs of a depthwise layer."""
AT_ONCE_ON_GPU = 2**26
"""The same on a GPU."""
QUERIES = 2**8
"""Queries of a block at the least: every product reads all weights."""
FEW_QUERIES = 2**6
"""An image, or a block, with fewer queries is small: a product with channels first is not worth it."""
RECTANGLE = 2**6
"""Numbers of a run up to which all runs of a rectangle are copied in one step."""
COPY_NS, TRANSPOSE_NS, SCATTER_NS = 0.09, 0.6, 0.3
"""Nanoseconds a number: a copy into columns, a weight transposed on the way, and a product added to what it belongs to."""
MIN_CHANNELS_LAST = 2**4
"""Channels from which col2im adds to images with channels last."""
MIN_CONTIGUOUS = 2**4
"""Numbers that follow each other in memory from which a depthwise layer reads its input in place."""
KEPT_BYTES = 2**23
"""Bytes of the largest workspace that a thread keeps from call to call."""
NARROW_PRODUCT_NS = 2.5
"""Nanoseconds a number of the columns, divided by the columns of the product: what a product with few columns loses."""
MIN_QUERIES_TRANSPOSED = 2**9
"""Queries of an image from which the weights of a 1 × 1 layer are transposed for a product with channels first."""
