"""``verify.audit``: measures from inputs and outputs whether an attention layer is a convolution."""
