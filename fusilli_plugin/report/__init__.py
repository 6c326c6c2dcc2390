"""What became of a model, for people: rows of a table, pictures, a page, a trace."""

from __future__ import annotations

from fusilli_plugin.report.memory import memory_svg
from fusilli_plugin.report.page import page, selftest_page
from fusilli_plugin.report.rows import StepRow, step_rows
from fusilli_plugin.report.trace import trace

__all__ = ["StepRow", "memory_svg", "page", "selftest_page", "step_rows", "trace"]
