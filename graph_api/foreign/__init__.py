"""Graphs of other front ends: cuDNN's own files, and whatever a program registers a reader for."""
