"""The edge to C: the shim is built, installed and filled with functions here; nothing else meets its handles."""
