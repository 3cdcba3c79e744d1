"""Headings of tables in templates about traces."""

from collections.abc import Iterable

from django import template

register = template.Library()

_TEXTS = frozenset({"Host", "Class", "Until"})
"""Headings of columns of words, which are not aligned like numbers."""


@register.filter
def columns(header: str) -> list[str]:
    """Return the headings of a table: {{ "Rank,Host"|columns }}."""
    return header.split(",")


@register.filter
def titled(row: Iterable[str], header: str) -> list[tuple[str, str]]:
    """Return the cells of a row, each with the heading of its column."""
    return list(zip(row, header.split(","), strict=True))


@register.filter
def is_text(title: str) -> bool:
    """Return whether a column has words instead of numbers."""
    return title in _TEXTS
