"""Tuned constants of the kernels, in float32 on one core of an AMD EPYC (Zen 5, AVX-512, 1 MiB of L2 cache), 2026-11-26.

The time of a call with half and with twice each constant, relative to the tuned one; the machine was idle, and two runs agreed
to 0.03.  "grad" is forward and backward, "first" channels first.

| constant               | unit             | layer                            | half | twice |
|------------------------|------------------|----------------------------------|------|-------|
| ONEDNN                 | multiplications  | 64 → 384, 1 × 1 at 14²           | 0.65 | 1.00  |
| the same on Zen 4      |                  |                                  | 1.37 | 1.09  |
| FEW_COLUMNS            | columns          | 128 → 128, 3 × 3 at 28²: grad    | 1.06 | 0.98  |
| MIN_TERMS              | terms of a sum   | 64 → 64, 3 × 3 at 112²           | 1.00 | 1.00  |
| AT_ONCE                | numbers          | 64 → 64, 3 × 3 at 112²           | 1.05 | 1.06  |
| AT_ONCE                | numbers          | 64 → 3, 3 × 3 at 112²            | 1.00 | 1.00  |
| AT_ONCE                | numbers          | 96, 7 × 7 at 56²                 | 1.00 | 1.00  |
| CACHED_PARTS        | parts            | the same on an Intel Xeon        | 1.35 | 1.05  |
| QUERIES                | queries          | 512 → 512, 3 × 3 at 28²          | 1.00 | 1.00  |
| FEW_QUERIES            | queries          | 512 → 512, 3 × 3 at 7²: grad     | 1.95 | 1.03  |
| RECTANGLE              | numbers          | 16 → 16, 3 × 3 at 56²            | 0.93 | 1.00  |
| SCATTER_NS             | ns a number      | 32 → 3, transposed 4 × 4 at 112² | 1.00 | 0.99  |
| MIN_CHANNELS_LAST      | channels         | 64 → 24, 3 × 3 at 56²: grad      | 0.99 | 1.00  |
| MIN_CONTIGUOUS         | numbers          | 32, 3 × 3 at 112²                | 0.99 | 1.00  |
| MIN_QUERIES_TRANSPOSED | queries          | 256 → 64, 1 × 1 at 56²: first    | 0.98 | 0.99  |

Slabs without AVX-512, 64 → 64, 3 × 3 at 32² to 112², 2026-11-25: blocks of 2**16 numbers took 10 to 16 % longer than those of
2**17 to 2**19, which agreed to 7 %.  With MIN_SLAB_TERMS 64 instead of 96, 64 → 64, 3 taps at 4096, takes 0.91 of the
time, and 24 → 24, 3 × 3 at 56² with channels last, 0.78; with 48, 48 channels take 0.90, and 16, 3 × 3, 1.06.

MIN_SAVED on an Intel Xeon, 2026-11-27: slabs take 1.25 of the time of one product where they save 64,000 numbers (256 → 256 at 7²),
0.92 where they save 70,000 (64 → 64 at 14²), 0.87 where they save 146,000 (at 20²).

COPY_NS, TRANSPOSE_NS and NARROW_PRODUCT_NS are only compared with SCATTER_NS; KEPT_BYTES holds AT_ONCE and its window.
Without AVX-512, AT_ONCE was measured at 2**17 to 2**19 only.
"""

ONEDNN = 2**23
"""Multiplications of a product from which oneDNN's inner product is faster than ``torch.mm``."""
FEW_COLUMNS = 2**7
"""Columns of a product up to which oneDNN multiplies the transposes, if the left matrix is stored transposed."""
MIN_TERMS = 96
"""Terms of a sum from which oneDNN's product pays off although its result is copied."""
MIN_BATCHED_TERMS = 24
"""Terms of a sum from which products pay off that read the tokens in place, one for each head or for some neighbours."""
MIN_SINGLE_CHANNELS = 2**7
"""Channels from which every head has a product of its own, and no weights are copied to stack them."""
MIN_ROW = 2**5
"""Queries of a row from which gradients of weights are summed row by row."""
AT_ONCE = 2**20
"""Float32 numbers copied or computed at a time, 4 MiB: im2col's columns, col2im's products."""
AT_ONCE_ON_GPU = 2**26
"""The same on a GPU."""
CACHED_PARTS = 4
"""A depthwise layer computes AT_ONCE divided by this: every head reads and writes all outputs, which should stay in L2."""
QUERIES = 2**8
"""The least queries per block: every product reads all weights."""
FEW_QUERIES = 2**6
"""An image or block with fewer queries is small: a product with channels first does not pay off."""
RECTANGLE = 2**6
"""Numbers per run up to which all runs of a rectangle are copied in one step."""
COPY_NS, TRANSPOSE_NS, SCATTER_NS = 0.09, 0.6, 0.3
"""Nanoseconds per number: to copy it into columns, to transpose a weight, and to add a product to its output."""
SUM_NS = 20_000
"""Nanoseconds to add a head's products to an image, however few they are."""
MIN_CHANNELS_LAST = 2**4
"""Channels from which col2im accumulates into channels-last images."""
MIN_CONTIGUOUS = 2**4
"""Contiguous numbers from which a depthwise layer reads its input in place."""
KEPT_BYTES = 2**23
"""Bytes of the largest workspace that a thread keeps between calls."""
NARROW_PRODUCT_NS = 2.5
"""What a product with few columns loses: nanoseconds per number of the im2col columns, divided by the product's columns."""
MIN_QUERIES_TRANSPOSED = 2**9
"""Queries per image from which the weights of a 1 × 1 layer are transposed for a product with channels first."""
