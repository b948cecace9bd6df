"""What both layers are, read from their raw fields: numbers, geometry, what each output reads, where each head looks."""
