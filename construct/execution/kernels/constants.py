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
| QUERIES                | queries          | 512 → 512, 3 × 3 at 28²          | 1.00 | 1.00  |
| FEW_QUERIES            | queries          | 512 → 512, 3 × 3 at 7²: grad     | 1.95 | 1.03  |
| RECTANGLE              | numbers          | 16 → 16, 3 × 3 at 56²            | 0.93 | 1.00  |
| SCATTER_NS             | ns a number      | 32 → 3, transposed 4 × 4 at 112² | 1.00 | 0.99  |
| MIN_CHANNELS_LAST      | channels         | 64 → 24, 3 × 3 at 56²: grad      | 0.99 | 1.00  |
| MIN_CONTIGUOUS         | numbers          | 32, 3 × 3 at 112²                | 0.99 | 1.00  |
| MIN_QUERIES_TRANSPOSED | queries          | 256 → 64, 1 × 1 at 56²: first    | 0.98 | 0.99  |

On one core of an Intel Xeon (AVX-512, AMX, 2 MiB of L2 cache), 2026-11-27, with Intel's matrix product:

| constant               | unit             | layer                            | half | twice |
|------------------------|------------------|----------------------------------|------|-------|
| CACHED_PARTS           | parts            | 96, 7 × 7 at 56²                 | 1.35 | 1.06  |
| CACHED_PARTS           | parts            | 64 → 64, 3 × 3 at 112²           | 0.99 | 0.97  |
| MIN_BATCHED_TERMS      | terms of a sum   | 3 → 64, 7 × 7, stride 2 at 224²  | 1.08 | 1.00  |
| MIN_BATCHED_TERMS      | terms of a sum   | 8 → 16, 3 × 3 at 112²            | 0.99 | 1.69  |
| MIN_SINGLE_CHANNELS    | channels         | 64 → 64, 3 × 3 at 56²            | 1.05 | 0.99  |
| MIN_SINGLE_CHANNELS    | channels         | 128 → 128, 3 × 3 at 28²          | 1.00 | 1.00  |
| MIN_ROW                | queries          | 16 → 16, 3 × 3 × 3 at 32²·4      | 1.89 | 1.01  |
| MIN_ROW                | queries          | 256 → 256, 3 × 3 at 14²          | 1.00 | 1.05  |
| MIN_PLANE              | queries          | 128 → 128, 3 × 3 × 3 at 16·8²    | 1.51 | 0.99  |
| MIN_PLANE              | queries          | 256 → 256, 3 × 3 at 14²: first   | 1.02 | 1.13  |
| MIN_TRANSPOSED_HEADS   | heads            | 64 → 64, 5 × 1 at 56²: first     | 1.07 | 0.99  |
| MIN_TRANSPOSED_HEADS   | heads            | 64 → 64, 3 × 3 at 56²: first     | 0.98 | 1.06  |
| MIN_SUMMED_ROW         | queries          | 64 → 64, 3 × 3 at 56²: grad      | 1.00 | 1.07  |
| MIN_SUMMED_ROW         | queries          | 32 → 64, 3 × 3 × 3 at 16³: grad  | 1.15 | 1.01  |
| SUM_NS                 | ns a sum         | 64 → 3, 3 × 3 at 14²             | 1.15 | 1.00  |

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
MIN_ROW, MIN_PLANE = 2**3, 2**7
"""Queries of the last axis, and of the last two axes, from which batched products pay off."""
MIN_SUMMED_ROW = 2**5
"""Queries of a row from which gradients of weights are summed row by row."""
MIN_TRANSPOSED_HEADS = 2**3
"""Heads from which batched products pay off although they transpose an input and an output with channels first."""
AT_ONCE = 2**20
"""Float32 numbers copied or computed at a time, 4 MiB: im2col's columns, col2im's products."""
AT_ONCE_ON_GPU = 2**26
"""The same on a GPU."""
CACHED_PARTS = 4
"""AT_ONCE divided by this stays in L2: what every head reads or writes again, in depthwise layers and batched products."""
QUERIES = 2**8
"""The least queries per block, and per image that is not multiplied together with others: every product reads all weights."""
FEW_QUERIES = 2**6
"""An image or block with fewer queries is small: a product with channels first does not pay off."""
RECTANGLE = 2**6
"""Numbers per run up to which all runs of a rectangle are copied in one step."""
COPY_NS, TRANSPOSE_NS, SCATTER_NS = 0.09, 0.6, 0.3
"""Nanoseconds per number: to copy it into columns, to transpose a weight, and to add a product to its output."""
SUM_NS = 12_000
"""The least nanoseconds to add a head's products to an image, however few they are."""
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
