"""What somebody may have meant by a word that is not known."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`` (did you mean X?)`` for the known name that is most like ``name``, whatever its case; "" if none is."""
    import difflib

    asked = str(name)[:64].lower()
    spelled = {each.lower(): each for each in known}
    close = difflib.get_close_matches(asked, spelled, 5, cutoff)
    # Of the near ones that which begins alike: gfx90a for gfx90b, not gfx950.
    begins = [next((n for n in range(len(asked), 0, -1) if each.startswith(asked[:n])), 0) for each in close]
    return f" (did you mean {spelled[close[begins.index(max(begins))]]}?)" if close else ""
