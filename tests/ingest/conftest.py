from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.cache import cache

from parlab.lab.models import Attempt, Node
from tests.conftest import place
from tests.fleet import conftest as fleet

broker = fleet.broker


@pytest.fixture(autouse=True)
def _no_memory_of_summaries() -> Iterator[None]:
    """Let each test be the first that ever summarised an attempt."""
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def make_attempt(make_attempt: Callable[..., Attempt]) -> Callable[..., Attempt]:
    """Create attempts that were given to node n1, whose batches count."""

    def make(**fields: Any) -> Attempt:
        attempt = make_attempt(**fields)
        node, _ = Node.objects.get_or_create(name="n1")
        place(attempt, node)
        return attempt

    return make
