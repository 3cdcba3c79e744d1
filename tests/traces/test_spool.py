"""Rows that are sorted outside of memory."""

from __future__ import annotations

import struct
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.traces import spool
from parlab.traces.spool import Spool

LAYOUT = np.dtype([("key", "<f8"), ("place", "<i4")])


@given(st.lists(st.integers(-3, 30), max_size=200), st.integers(1, 30), st.integers(1, 30))
def test_rows_come_in_order_and_equal_keys_in_one_block(keys: list[int], run: int, block: int) -> None:
    with patch.object(spool, "RUN_ROWS", run), patch.object(spool, "BLOCK_ROWS", block):
        rows = Spool(LAYOUT, "key")
        for place, key in enumerate(keys):
            rows.add(key, place)
        for _ in range(2):  # a second reading is like the first
            blocks = list(rows.blocks())
            assert len(rows) == len(keys)
            read = [tuple(row) for part in blocks for row in part.tolist()]
            assert read == sorted((float(key), place) for place, key in enumerate(keys))
            of_blocks = [{row["key"] for row in part} for part in blocks]
            assert sum(map(len, of_blocks)) == len(set(keys))


def test_a_wrong_value_adds_nothing_and_files_do_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "RUN_ROWS", 3)
    rows = Spool(LAYOUT, "key", tmp_path)
    for place in range(10):
        rows.add(-place, place)
    with pytest.raises(struct.error):
        rows.add(1.0, "x")  # type: ignore[arg-type]
    rows.extend(np.array([(-99.0, 99)], LAYOUT))
    assert [place for block in rows.blocks() for place in block["place"].tolist()] == [99, *range(9, -1, -1)]
    assert list(tmp_path.iterdir()) == []
