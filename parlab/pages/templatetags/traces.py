"""Headings of tables in templates about traces."""

from django import template

register = template.Library()


@register.filter
def columns(header: str) -> list[str]:
    """Return the headings of a table: {{ "Rank,Host"|columns }}."""
    return header.split(",")
