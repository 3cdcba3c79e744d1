"""Markdown and reStructuredText: lines of blocks, limits, and damaged markup."""

from __future__ import annotations

import json

import pytest

from parlab.formats import read_document
from parlab.formats.documents import rst
from parlab.formats.documents.blocks import Heading
from parlab.formats.documents.markdown import MAX_CELLS, MAX_INLINE, _Bounded


@pytest.mark.parametrize("row", ["| {n} | 2.5 |\n", "| **{n}** | 2.5 |\r\n"])
def test_a_long_table_is_read_up_to_a_number_of_cells_and_the_text_below_it_too(row: str) -> None:
    body = "".join(row.format(n=n) for n in range(30_000))
    lines = f"# Results\n\n| a | b |\n|---|---|\n{body}\n## Below\n\n| c | d |\n".splitlines(keepends=True)
    document = read_document(lines, file="x", format="markdown")
    (table,) = document.tables
    assert 10_000 < len(table.rows) * len(table.columns) <= MAX_CELLS
    assert document.unread.examples[0].line == len(table.rows) + 5
    assert "rows of tables beyond" in document.unread.examples[0].reason


def test_rows_without_bars_around_them_count_as_well() -> None:
    bounded = _Bounded(["a | b\n", "--|--\n", *(f"{n} | 2.5\n" for n in range(30_000)), "\n", "a | b\n"])
    kept = [line for line in bounded if line != "\n"]
    assert len(kept) == 30_003 - bounded.rows
    assert 2 * len(kept) <= MAX_CELLS + 4
    assert kept[-1] == "a | b\n", "a line of prose below the table is no row"


def test_markup_is_removed_from_paragraphs_up_to_a_length() -> None:
    marked = "**Steady:** GPU util: 85%"
    for filler, text in (("", "Steady: GPU util: 85%"), ("[" * MAX_INLINE, marked)):
        document = read_document([f"{filler}\n", f"{marked}\n"], file="x", format="markdown")
        assert [figure.text for figure in document.figures["gpu_util_pct"]] == [text]


@pytest.mark.parametrize("damage", ["<!--" * 200_000, "<![CDAT x\n\n<!x\n", "<? <? <!\n"], ids=lambda text: text[:8])
def test_damaged_declarations_of_html_cost_no_time_and_raise_nothing(damage: str) -> None:
    page = f"GPU util: 85%\n\n<table><tr><th>a</th></tr><tr><td>1</td></tr></table>\n{damage}"
    document = read_document(page.splitlines(keepends=True), file="x", format="markdown")
    assert document.figures["gpu_util_pct"][0].value == 85
    assert [table.columns for table in document.tables] == [["a"]]


RST = """Title
=====

Title
-----

*it* text of
two lines

.. code-block:: bash

    step 1: 5 ms

.. image:: a.png
   :alt: b

=== =====
a   b
=== =====
1   2.5 s
=== =====
"""


def test_blocks_of_restructuredtext_have_their_lines() -> None:
    blocks = rst.document(RST)
    assert [(type(block).__name__, block.line) for block in blocks] == [
        ("Heading", 2), ("Heading", 5), ("Text", 7), ("Code", 12), ("Image", 14), ("Table", 17)
    ]  # fmt: skip
    assert blocks[0] == Heading(2, "Title")


def test_blocks_pass_between_processes_as_plain_values() -> None:
    blocks = rst.document(RST)
    passed = rst.blocks_of(json.loads(json.dumps(rst.plain_blocks(RST))))
    assert passed == blocks
    assert [*map(type, passed)] == [*map(type, blocks)]
