"""onnx's native functions in a process of their own, since some models end the process that asks."""
