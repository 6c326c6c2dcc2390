"""A runner for the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from fusilli_plugin.cli import cli

Fusilli = Callable[..., Result]


@pytest.fixture
def fusilli() -> Fusilli:
    """Runs ``fusilli ARGS``; an exception that the command line does not handle fails the test."""

    def run(*args: object) -> Result:
        result = CliRunner().invoke(cli, [str(arg) for arg in args])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run
