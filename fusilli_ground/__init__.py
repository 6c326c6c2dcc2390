"""The ground floor: what several packages need and none of them owns. Imports none of ours.

Its own package, and not a part of ``graph_api``: ``hipdnn_backend`` runs in programs that never build one of our
graphs, and importing anything below ``graph_api`` would load all operations.
"""
