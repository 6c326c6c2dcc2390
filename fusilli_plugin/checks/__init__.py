"""Suites that users run: the demo, the self-test, the probes behind ``fusilli doctor``."""
