"""From a graph to Torch-MLIR. Only ``module`` is needed from outside; the other files run in a compile worker.

``builder`` makes operations, ``emitter`` adds the tensors of a graph, and each family of operations has a file whose
functions register themselves with ``emitter.rule``.
"""
