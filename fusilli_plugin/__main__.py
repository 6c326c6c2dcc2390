"""``python -m fusilli_plugin`` is the ``fusilli`` command."""

from fusilli_plugin.cli.entry import main

if __name__ == "__main__":
    main()
