"""Addresses of the rows of long tables: each is looked up among the routes once."""

from __future__ import annotations

from functools import lru_cache

from django.urls import get_script_prefix, reverse

KEPT = 20_000


def address(name: str, *arguments: str | int) -> str:
    """Return `reverse(name, args=arguments)`."""
    return _address(get_script_prefix(), name, arguments)


@lru_cache(KEPT)
def _address(_prefix: str, name: str, arguments: tuple[str | int, ...]) -> str:
    return reverse(name, args=arguments)
