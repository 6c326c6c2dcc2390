"""``fusilli bench``: this project beside ONNX Runtime and PyTorch, on the same cores, in turns."""
