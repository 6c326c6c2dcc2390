"""Fusilli for users: the command line, the checks it runs, and the adapters that other frameworks load."""

__all__ = ["__version__"]

__version__ = "0.1.0"
