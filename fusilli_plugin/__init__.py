"""Fusilli for users: the command line, the checks it runs, and the adapters that other frameworks load."""

__all__ = ["__version__", "plugin_dir"]

__version__ = "0.1.0"


def plugin_dir() -> str:
    """The folder with the hipDNN engine plugin, for ``hipdnn_frontend.set_engine_plugin_paths``.

    Raises:
        InstallError: the plugin is not there and cannot be built.
    """
    from fusilli_plugin.install import plugin_dir as find

    return str(find())
