"""ONNX networks that are made here: what ``fusilli bench --suite models`` times, and tests of whole models run."""
