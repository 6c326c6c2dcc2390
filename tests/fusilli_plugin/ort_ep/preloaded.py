"""Runs a module with another build of the shim: ``python -m tests.fusilli_plugin.ort_ep.preloaded LIBRARY MODULE ...``.

For one that sanitizers watch, whose runtime the caller has preloaded.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from fusilli_plugin.edge import build


def main() -> None:
    """Entry point."""
    library, module, *arguments = sys.argv[1:]
    build.LIBRARY = Path(library)  # pyright: ignore[reportAttributeAccessIssue]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert library in Path("/proc/self/maps").read_text(), f"{library} was not used"


if __name__ == "__main__":
    main()
