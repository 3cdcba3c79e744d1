"""reStructuredText read part by part, against docutils reading the whole document."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from parlab.formats.documents.rst import _blocks, _tree, blocks_of, document, plain_blocks
from parlab.formats.documents.rst_parts import parts

HERE = Path(__file__).parent

CHUNKS = [
    "Title\n=====", "Steps\n-----", "Deeper\n~~~~~~", "=====\nTitle\n=====", "Short\n--", "Title\n=======\ntext below",
    "Plain text of 5 ms.", "Two lines\nof plain text: 5 ms", "A term\n  its definition", "Text::\n\n    literal 5 ms",
    "Text::", "    quoted 5 ms", "- item\n- item", "1. one\n2. two", "A. one", "(a) one", "2.5 GB of memory", "-5",
    "| a\n| b",
    "With ``code x`` and **bold 5 s**, snake_case.", "*it* text", "name_ refers", "`a b`_ text", "|sub| text",
    "[1]_ note",
    ".. _target:", ".. code-block:: bash\n\n    step 1: 5 ms\n\n    more", ".. image:: a.png\n   :alt: b",
    ".. note::\n   text",
    ".. a comment", ".. contents::", ":Author: me", ".. |sub| replace:: text", ">>> 1 + 1\n2", "-o out  an option",
    "=== =====\na   b\n=== =====\n1   2.5 s\n=== =====", "=== =====\n1   2.5 s\n2   **3**\n=== =====",
    "=== =====\na   b\n=== =====\n1   2.5 longer than its column\n    next\n=== =====",
    "=== =====\na   b\n--- -----\n1   2\n=== =====", "=== =====\na   b\n=== =====\n1   - x\n2   -5\n=== =====",
    "=== =====\na   b\n=== =====\n1\n2   x\n=== =====", "=== =====\na   b\n=== =====\nlong text\n=== =====",
    "=== =====\na   b\n=== =====", "+---+---+\n| a | b |\n+---+---+", "====", "-----", "text\n====\ntext", "a\\ b",
    "a **b", "``x",
    "see http://a.example and a@b.example", "``a``-``b``", "(``a``)", "**a:** b", "> quoted", "... text", "5 > 3",
    "a\tb", "x\u2028y",
    "=== =====\n1   2.5 s\n\n2   3 s\n=== =====",
    ".. list-table::\n\n   * - a\n     - b\n   * - 1\n     - 2",
]  # fmt: skip


def readings(text: str) -> tuple[list[object], list[object]]:
    return list(document(text)), list(_blocks(_tree(text), text.split("\n")))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_parts_give_the_blocks_of_the_wholedocument(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        pool = rng.sample(CHUNKS, 6) + CHUNKS[:8] + CHUNKS[35:37]
        text = "".join(chunk + rng.choice(["\n\n", "\n\n", "\n\n", "\n\n\n", "\n"]) for chunk in rng.choices(pool, k=6))
        by_parts, whole = readings(text)
        assert by_parts == whole, text
        assert blocks_of(json.loads(json.dumps(plain_blocks(text)))) == by_parts


@pytest.mark.parametrize("chunk", CHUNKS)
def test_each_kind_of_text_is_the_same_between_plain_parts(chunk: str) -> None:
    by_parts, whole = readings(
        f"Head\n----\n\nText before.\n\n{chunk}\n\nText behind of 5 ms.\n\nNext\n----\n\nThe end.\n"
    )
    assert by_parts == whole


@pytest.mark.parametrize("path", sorted(HERE.glob("*/*.rst")), ids=lambda path: path.name)
def test_real_documents_have_the_same_blocks(path: Path) -> None:
    by_parts, whole = readings(path.read_text())
    assert by_parts == whole


def test_a_subtitle_keeps_its_line() -> None:
    by_parts, whole = readings("Title\n=====\n\nTitle\n-----\n\n*it* text\n")
    assert by_parts == whole
    assert [block.line for block in by_parts] == [2, 5, 7]  # type: ignore[attr-defined]


def test_most_of_a_page_of_results_needs_no_docutils() -> None:
    text = "\n\n".join(["Steps\n-----", "Text of 5 ms.", CHUNKS[35], "- item", "More **5 ms** ``a``."])
    divided = parts(text.split("\n"))
    assert divided is not None
    assert [part.blocks is None for part in divided] == [False, False, False, True, False]
