"""Every class that figures give their marks has a colour: names with a number are made where they are drawn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSS = (Path(__file__).resolve().parents[2] / "static" / "css" / "face.css").read_text(encoding="utf-8")


@pytest.mark.parametrize(("prefix", "first", "last"), [("q", 0, 5), ("h", 0, 5), ("s", 1, 8), ("f", 1, 8), ("b", 1, 8)])
def test_shades_and_series_have_a_rule_each(prefix: str, first: int, last: int) -> None:
    ruled = {int(number) for number in re.findall(rf"\.{prefix}(\d) {{", CSS)}
    assert set(range(first, last + 1)) <= ruled
