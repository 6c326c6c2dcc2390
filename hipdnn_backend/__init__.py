"""hipDNN's side of the border: its wire format, its engine plugin ABI and a host for engines.

Knows engines by protocol only; imports nothing of the other packages.
"""
