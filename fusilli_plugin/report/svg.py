"""The few parts of SVG that the pictures use. Texts are escaped: names come from models, and models from anybody."""

from __future__ import annotations

import html

__all__ = [
    "COLOURS",
    "bytes_text",
    "colour_of",
    "document",
    "escape",
    "printable",
    "rect",
    "shortened",
    "text",
    "time_text",
]

COLOURS = {"fusion": "#2a9d8f", "custom": "#e9a23b", "copy": "#9aa5b1"}
"""Fill by kind of step."""
_OTHER_ENGINES = ("#7b6cd9", "#d1495b", "#3a86c8", "#6a994e")
_OWN_ENGINE = "FUSILLI_ENGINE"


def printable(words: str) -> str:
    """Words without control characters: XML can hold few of them, even escaped."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in words)


def escape(words: str) -> str:
    """Words as XML can hold them: neither markup nor control characters."""
    return html.escape(printable(words))


def colour_of(kind: str, engine: str, engines: list[str]) -> str:
    """The fill of a step: its kind for our own engine, a colour of its own for each other one."""
    others = [name for name in engines if name and name != _OWN_ENGINE]
    if engine in others:
        return _OTHER_ENGINES[others.index(engine) % len(_OTHER_ENGINES)]
    return COLOURS[kind]


def document(width: float, height: float, body: list[str], title: str) -> str:
    """A picture that stands alone."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}" role="img" font-family="system-ui, sans-serif" font-size="11">',
            f"<title>{escape(title)}</title>",
            *body,
            "</svg>",
        )
    )


def rect(x: float, y: float, width: float, height: float, fill: str, hint: str = "", *, more: str = "") -> str:
    """A rectangle with a text that appears under the pointer."""
    inside = f"<title>{escape(hint)}</title>" if hint else ""
    size = f'width="{max(width, 0.5):.1f}" height="{max(height, 0.5):.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{fill}" {more}>{inside}</rect>'


def text(x: float, y: float, words: str, *, anchor: str = "start", fill: str = "#222", more: str = "") -> str:
    """Words at a point."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" {more}>{escape(words)}</text>'


def shortened(words: str, length: int) -> str:
    """The start of long words."""
    return words if len(words) <= length else words[: length - 1] + "…"


def bytes_text(count: float) -> str:
    """A number of bytes as people say it."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def time_text(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
