"""Attaches the packages to the shim. The shim runs this file in a namespace with these names, in no module.

LINK: address of the shim's struct. ROOT, PYTHON: folder of the packages and path of their interpreter, as bytes.

Several threads may run it at the same time; what it does a second time does nothing.
"""

given = globals()


def boot() -> None:
    """Import the packages and hand the shim its functions."""
    import gc

    # Hundreds of modules are imported and nothing of that is garbage; looking for some takes a tenth of the time.
    enabled = gc.isenabled()
    gc.disable()
    try:
        attach()
    finally:
        if enabled:
            gc.enable()


def attach() -> None:
    """Import the packages from ROOT, and only from there, and hand the shim its functions."""
    import importlib
    import os
    import site
    import sys

    root, python = os.fsdecode(given["ROOT"]), os.fsdecode(given["PYTHON"])
    # In a foreign Python our dependencies are not on the path; .pth files count, so addsitedir. Theirs come first.
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = os.path.dirname(os.path.dirname(python)) if python else ""
    folders = [root, *(os.path.join(prefix, lib, version, "site-packages") for lib in ("lib", "lib64") if prefix)]
    known = {os.path.realpath(folder) for folder in sys.path}
    for folder in folders:
        if os.path.isdir(folder) and os.path.realpath(folder) not in known:
            site.addsitedir(folder)
    # A second copy elsewhere on the path would be loaded in silence otherwise.
    sys.path.insert(0, root)
    try:
        for name in ("fusilli_ground", "graph_api", "iree_bridge", "hipdnn_backend", "fusilli_plugin"):
            package = importlib.import_module(name)
            home = os.path.dirname(os.path.dirname(os.path.abspath(str(package.__file__))))
            if os.path.realpath(home) != os.path.realpath(root):
                raise ImportError(f"{name} was imported from {home} already, the plugin is that of {root}")
    finally:
        sys.path.remove(root)
    import fusilli_plugin.attach

    fusilli_plugin.attach.attach(given["LINK"])


def report(text: str) -> None:
    """Tell the shim why the packages could not be attached: its struct starts with a function for that."""
    import ctypes

    address = ctypes.c_void_p.from_address(given["LINK"]).value
    assert address is not None
    ctypes.CFUNCTYPE(None, ctypes.c_char_p)(address)(text.encode(errors="replace"))


try:
    boot()
except BaseException as error:  # SystemExit included: nothing may cross into the host
    report(f"{type(error).__name__}: {error}")
