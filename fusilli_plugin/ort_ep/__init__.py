"""The execution provider for ONNX Runtime: what the functions of ``shim/ort.c`` end in.

``abi`` names ONNX Runtime's functions, ``graphs`` reads its graphs, ``provider`` claims and compiles nodes through
``hipdnn_backend.offload``, ``nodes`` runs what was compiled, ``memory`` serves device memory and streams, and
``register`` is what users call.
"""
