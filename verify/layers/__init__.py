"""The raw fields of a convolution and an attention layer: weights, geometry, what each output
reads, where each head looks.
"""
