"""``verify.audit``: whether an attention layer is a convolution, measured from its inputs and outputs."""
