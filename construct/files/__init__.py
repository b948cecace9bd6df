"""Model files: safe reading, atomic writing, and export to .pt2 and ONNX."""
