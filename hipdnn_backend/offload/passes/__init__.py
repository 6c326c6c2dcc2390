"""The passes of the offload pipeline that are ours, a file each."""
