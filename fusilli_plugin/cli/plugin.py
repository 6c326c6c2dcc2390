"""``fusilli install-plugin`` and ``fusilli plugin-dir``: the engine plugin where hipDNN finds it."""

from __future__ import annotations

from pathlib import Path

import click

from fusilli_ground.environment import environment
from fusilli_plugin.cli.base import command, echo
from fusilli_plugin.edge.install import engine_folder, link_plugin, merged_folder, plugin_dir
from iree_bridge import Options

__all__ = ["install_plugin", "show_plugin_dir"]

_FOLDER = click.Path(path_type=Path)


@command("install-plugin")
@click.option(
    "--into", type=_FOLDER, metavar="DIR", help="A folder of engine plugins; default: the one beside hipDNN's library."
)
def install_plugin(into: Path | None) -> None:
    r"""Link the plugin beside hipDNN's other engines.

    Every program that uses hipDNN has FUSILLI_ENGINE among its engines from then on. Where the folder
    cannot be written, the command that does it is printed. Without hipDNN there is none, and --into is needed.

    \b
    Examples:
      fusilli install-plugin
      fusilli install-plugin --into ~/engines && export HIPDNN_PLUGIN_DIR=~/engines
    """
    link = link_plugin(into or engine_folder())
    echo(f"{link} -> {link.resolve()}")
    named = environment().get("HIPDNN_PLUGIN_DIR")
    if named and Path(named).resolve() != link.parent.resolve():
        echo(
            f"note: HIPDNN_PLUGIN_DIR={named} is set here; programs that have it load plugins from there only", err=True
        )


@command("plugin-dir")
@click.option(
    "--with", "others", type=_FOLDER, multiple=True, metavar="DIR", help="A folder with more plugins; repeatable."
)
def show_plugin_dir(others: tuple[Path, ...]) -> None:
    r"""Print the folder with the plugin.

    HIPDNN_PLUGIN_DIR names one folder and replaces hipDNN's own. With --with the folder printed holds
    links to this plugin and to those of the other folders; each set of plugins has a folder that stays.

    \b
    Examples:
      export HIPDNN_PLUGIN_DIR=$(fusilli plugin-dir)
      export HIPDNN_PLUGIN_DIR=$(fusilli plugin-dir --with /opt/rocm/lib/hipdnn_plugins/engines)
    """
    if not others:
        echo(plugin_dir())
        return
    for folder in others:
        if not folder.is_dir():
            raise click.BadParameter(f"there is no folder {folder}", param_hint="--with")
    echo(merged_folder(others, Options.from_env().cache_dir / "engines"))
