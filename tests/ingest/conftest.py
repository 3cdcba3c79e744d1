from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.cache import cache

from tests.fleet import conftest as fleet

broker = fleet.broker


@pytest.fixture(autouse=True)
def _no_memory_of_summaries() -> Iterator[None]:
    """Let each test be the first that ever summarised an attempt."""
    cache.clear()
    yield
    cache.clear()
