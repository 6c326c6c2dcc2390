"""Does an engine plugin of hipDNN keep to the interface, and compute what it claims? For plugins of anybody.

`fusilli_plugin.conformance.suite` runs the checks, each in a process of its own (`child`): where a plugin crashes or
hangs, that is a row of the report. A check is a function in `checks`, and registers itself there.
"""
