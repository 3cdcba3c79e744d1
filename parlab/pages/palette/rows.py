"""Rows of the palette: what a person may open, run or take over into the query."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from django.utils.html import escape
from django.utils.safestring import SafeString

from parlab.charts.svg import Look, Svg, line_key


class Row(NamedTuple):
    """One row: a link, a form without fields if `ask` is set, or a message if there is no address."""

    title: SafeString
    """The words of the query are marked; all else is escaped."""
    url: str = ""
    icon: str = ""
    look: Look | None = None
    """Of a run: the line and mark that it has in figures."""
    note: str = ""
    value: str = ""
    unit: str = ""
    preview: str = ""
    """Address of what stands beside the list while the row is selected."""
    term: str = ""
    """The query that Tab takes over."""
    run: int = 0
    """Id of a run, which Ctrl+Enter adds to the comparison."""
    ask: str = ""
    """Question before the address is posted to."""

    @property
    def key(self) -> Svg:
        """The line and mark of a run."""
        return line_key(self.look or Look())

    @property
    def is_message(self) -> bool:
        return not self.url and not self.term


class Group(NamedTuple):
    title: str
    rows: Sequence[Row]


class Place(NamedTuple):
    """The page that is open below the palette."""

    name: str = ""
    """Name of its route."""
    slug: str = ""
    number: int = 0
    """Number of the run of a run's page."""


def marked(text: str, words: Sequence[str] = ()) -> SafeString:
    """Return a text with the words of the query marked, escaped."""
    parts = [re.escape(word) for word in words if word]
    if not parts:
        return SafeString(escape(text))
    pieces = re.split(f"({'|'.join(parts)})", text, flags=re.IGNORECASE)
    # A split by one group alternates between what is outside and inside of it.
    return SafeString(
        "".join(f"<mark>{escape(piece)}</mark>" if place % 2 else escape(piece) for place, piece in enumerate(pieces))
    )
