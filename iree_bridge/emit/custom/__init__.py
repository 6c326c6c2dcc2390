"""Custom operations: their text is checked (``template``), and what it computes put right before it joins a module."""
