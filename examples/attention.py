"""Causal attention over sequences of different lengths in one padded batch, compared with PyTorch in float64.

Needs PyTorch (pip install 'fusilli-plugin[torch]').

Run it:  python examples/attention.py
"""

import sys

import numpy as np
import torch

from graph_api import DataType, Graph
from iree_bridge import build

DEVICE = "cpu"  # "hip" on a machine with an AMD GPU
BATCH, HEADS, LENGTH, WIDTH = 2, 4, 64, 32
LENGTHS = (64, 41)  # of the sequences; the rest of the second one is padding


def make_graph() -> Graph:
    g = Graph("attention", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    q, k, v = (g.tensor(name, dim=(BATCH, HEADS, LENGTH, WIDTH)) for name in "qkv")
    lengths = g.tensor("lengths", dim=(BATCH, 1, 1, 1), data_type=DataType.INT32)
    out, _ = g.sdpa(q, k, v, causal_mask=True, padding_mask=True, seq_len_q=lengths, seq_len_kv=lengths)
    out.set_name("out").set_output(True)
    return g.validate()


def main() -> int:
    graph = make_graph()
    rng = np.random.default_rng(0)
    shape = (BATCH, HEADS, LENGTH, WIDTH)
    pack: dict[str, np.ndarray] = {name: rng.standard_normal(shape).astype(np.float16) for name in "qkv"}
    pack["lengths"] = np.array(LENGTHS, np.int32).reshape(BATCH, 1, 1, 1)
    pack["out"] = graph.find("out").empty()
    build(graph, device=DEVICE).run(pack)

    q, k, v = (torch.from_numpy(pack[name]).double() for name in "qkv")
    position = torch.arange(LENGTH)
    sees = (position[:, None] >= position) & (position < torch.tensor(LENGTHS)[:, None, None, None])
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=sees)
    # Weights and result may each be rounded to float16, by a part of 2**-11; no weight is negative, so the same weights
    # over |v| say how much that can move a result. Twice that leaves room for the scores, which are float32.
    moved = torch.nn.functional.scaled_dot_product_attention(q, k, v.abs(), attn_mask=sees)
    error = (torch.from_numpy(pack["out"]).double() - expected).abs()
    right = error <= 4 * 2.0**-11 * moved

    wrong, compared = 0, 0
    for i, length in enumerate(LENGTHS):  # what comes out for a query of padding is of no use to anybody
        wrong += int((~right[i, :, :length]).sum())
        compared += right[i, :, :length].numel()
    print(f"causal attention on {DEVICE}, lengths {LENGTHS}: {wrong} of {compared} elements wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
