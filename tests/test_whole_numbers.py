"""Whole numbers of addresses."""

from __future__ import annotations

import pytest

from parlab.whole_numbers import whole_number, whole_numbers


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1.0", "1_0", "1e3", "٣", "²", "9" * 19])
def test_other_texts_are_no_whole_numbers(text: str) -> None:
    assert whole_number(text) is None


def test_digits_are_limited() -> None:
    assert whole_number("007") == 7
    assert whole_number("9" * 18) == 10**18 - 1
    assert whole_number("1000", 3) is None
    assert whole_numbers(["3", "x", "", "5"]) == [3, 5]
