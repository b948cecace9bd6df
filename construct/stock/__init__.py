"""MHSA layers as stock ``torch.nn.MultiheadAttention``, and back."""
