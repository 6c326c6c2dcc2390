"""ONNX Runtime as the last engine: nodes of a model that no compiler takes."""
