"""The same function inside a stock ``torch.nn.MultiheadAttention``, and back."""
