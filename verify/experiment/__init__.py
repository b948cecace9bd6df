"""Is some attention layer a convolution?  Judged by experiment, from its inputs and outputs alone."""
