"""Where programs that were written before the rooms import graphs from; see `fusilli_plugin.engine.importers`."""

from __future__ import annotations

from fusilli_plugin.engine.importers import export_graph, import_graph

__all__ = ["export_graph", "import_graph"]
