"""Markdown read part by part, against markdown-it-py reading the whole document."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from parlab.formats import read_document
from parlab.formats.documents.markdown import MAX_CELLS, _blocks, _Bounded, _document, _parse
from parlab.formats.documents.markdown_parts import parts

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]

# Lines that begin, continue or end blocks, and texts with and without markup.
LINES = """
||   |# Title|## Step `a` **1** #|####### no title|#|#No title|Title|=====|-----|---|***|* * *|- - -|___
text|text with two spaces  |two lines\\|   indented by three|    indented by four|\ttab|snake_case and __init__|a_ b
With **3.45 s** took|**Note:** a|**a*b**|(**bold**), *it* 2 * 3|`code` and ``two`` ` one|`a` **b `c**` d|a **`b`** c
**a\u00a0b** c
a & b &amp; c|5 < 6 <br> <https://a.example>|[a](b) [c] ![alt](pic.png)|[rank0]: step 1|[rank0] text: 5 ms
! a ![b|<div>|</div>
<!-- a|-->|<pre>|</pre>|- item|- |-|* item|+ item|1. one|10) ten|2.5 GB|  - nested|   - three|      deep|  text
> quote|>- a|> ```
```|```bash|````|~~~|~~~ a|  ```|   ```|    ```|``` a`b|- ```|1. ```|step 1: loss 2.5|{"a": 1}|key: 5 ms|x\u2028y|x\x0by
"""
ROWS = ["| a | b |", "|---|---|", "|:--|--:|", "|:-:|", "| **1** | `2` |", "| 1 |", "| 1 | 2 | 3 |", "a | b", "--|--",
        "| a \\| b | c |", "||", "|", "| a | b | ", "|---|---| ", "  | a | b |", "|----", "| x_y | <a> |"]  # fmt: skip


def readings(text: str) -> tuple[list[object], list[object]]:
    return list(_document(text)), list(_blocks(_parse(text), text.split("\n")))


@pytest.mark.parametrize("seed", range(24))
def test_parts_give_the_blocks_of_the_whole_document(seed: int) -> None:
    rng = random.Random(seed)
    pool = [line for row in LINES.strip("\n").split("\n") for line in row.split("|")] + ROWS * 2 + [""] * 30
    for _ in range(40):
        text = "\n".join(rng.choices(pool, k=rng.randint(1, 14))) + rng.choice(["", "\n"])
        by_parts, whole = readings(text)
        assert by_parts == whole, text


@pytest.mark.parametrize("path", sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/*/*.md"), *HERE.glob("*/*.md")]),
                         ids=lambda path: path.name)  # fmt: skip
def test_real_documents_have_the_same_blocks(path: Path) -> None:
    by_parts, whole = readings(path.read_text())
    assert by_parts == whole


def test_most_of_a_page_of_results_needs_no_parser() -> None:
    text = (
        "# Results\n\nText in `code` and **bold**,\nin two lines.\n\n## Steps\n\n| a | b |\n|---|--:|\n| 1 | **2** |\n"
        "\n```\nstep 1\n\nstep 2\n```\n\nMore text:\n- a\n- b\n\nThe end.\n"
    )
    divided = parts(text.split("\n"))
    assert divided is not None
    kinds = [part.kind for part in divided]
    assert kinds == ["heading", "paragraph", "heading", "table", "fence", "other", "paragraph"]


@pytest.mark.parametrize(
    "text",
    ["[a]\n\n[a]: /b\n", "- [a]: /b\n\n[a]\n", "- x\n\n<!-- a\n\n# b\n-->\n", "- a\n\n  ```\n\n# b\n",
     "   ```\n\n# b\n", "-\n\n  ```\nb\n\nc\n```\n", "- - -\n\n  ```\nb\n\nc\n```\n", "- a\n# b\n  ```\n\nc\n\n```\n"],
)  # fmt: skip
def test_what_an_earlier_line_may_change_is_read_as_a_whole(text: str) -> None:
    by_parts, whole = readings(text)
    assert by_parts == whole


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
