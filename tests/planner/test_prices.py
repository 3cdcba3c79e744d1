"""List prices of devices."""

from __future__ import annotations

import re

import pytest

from parlab.planner.job.prices import LIST_PRICES


@pytest.mark.parametrize("device", LIST_PRICES)
def test_a_list_price_names_its_source_and_its_date(device: str) -> None:
    price = LIST_PRICES[device]
    assert re.search(r"USD [\d.]+ an hour for .*, list price (of|until June) 2025$", price.source)
    assert price.tag.split(" ", 1)[0] in ("AWS", "Azure", "Google")
    assert price.seen
    assert price.tag.endswith(price.seen)
