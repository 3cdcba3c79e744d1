"""Tables of results without Markdown: CSV, aligned columns, frames, and HTML within Markdown."""

from __future__ import annotations

import pytest

from parlab.formats import read_document
from parlab.formats.schema import Document

CSV = """run,nodes,gpus,tp,micro_batch_size,step_time_ms,tflops_per_gpu,peak_mem_gb
a,1,8,1,2,2210.4,151.2,61.1
"b, again",2,16,2,2,1310.8,127.5,48.9
c,4,32,4,2,,,OOM
"""
ALIGNED = """TP  PP  DP  mbs  step(s)  TFLOPs/GPU  mem(GB)
1   1   8   4    2.211    148.3       61.2
2   1   4   8    2.402    136.6       41.0
"""
PANDAS = """    tp  pp  micro_batch_size  step_time_s  tokens_per_sec
0    1   1                 4        2.211        474200.0
1    2   1                 8        2.402        436500.0
"""
RICH = """┏━━━━━━━┳━━━━━━━━━━━━━━┓
┃ Nodes ┃ busbw (GB/s) ┃
┡━━━━━━━╇━━━━━━━━━━━━━━┩
│ 1     │ 361.2        │
│ 2     │ 188.4        │
└───────┴──────────────┘
"""
HTML = """# Results

<table>
<tr><th rowspan="2">GPUs</th><th colspan="2">Step time (ms)</th></tr>
<tr><th>ZeRO&nbsp;1</th><th>ZeRO 3</th></tr>
<tr><td>8</td><td><b>812.5</b></td><td>1,120</td></tr>
<tr><td>16</td><td>421</td><td>OOM</td></tr>
</table>

<p align="center">The throughput is 251 samples/s on 8 GPUs.</p>
"""


def document(text: str, file: str = "x.txt") -> Document:
    return read_document(text.splitlines(keepends=True), file=file)


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        (CSV, ["run", "nodes"], [["a", "1"], ["b, again", "2"], ["c", "4"]]),
        (CSV.replace('"b, again"', "b").replace(",", ";"), ["run", "nodes"], [["a", "1"], ["b", "2"], ["c", "4"]]),
        (ALIGNED, ["TP", "PP"], [["1", "1"], ["2", "1"]]),
        (PANDAS, ["tp", "pp"], [["1", "1"], ["2", "1"]]),
        (RICH, ["Nodes", "busbw (GB/s)"], [["1", "361.2"], ["2", "188.4"]]),
    ],
    ids=["CSV", "semicolons", "aligned", "pandas", "Rich"],
)
def test_a_table_is_recognised_by_its_header(text: str, columns: list[str], rows: list[list[str]]) -> None:
    read = document("Our cluster has NVLink.\n\n" + text)
    assert read.format == "tables"
    (table,) = read.tables
    assert table.columns[:2] == columns
    assert [[cell.text for cell in row[:2]] for row in table.rows] == rows
    assert not read.unread.lines


def test_tables_of_a_text_are_read_one_by_one_and_the_text_between_them_as_prose() -> None:
    read = document(f"{ALIGNED}\nTraining ran on 4 nodes with 8 A100 each, at 474200 tok/s.\n{CSV}")
    assert [(table.line, len(table.rows)) for table in read.tables] == [(1, 2), (6, 3)]
    assert read.figures["num_gpus"][0].value == 32


@pytest.mark.parametrize(
    "text",
    [
        "epoch,accuracy,loss,step_time_s\n1,0.5,2.1,0.4\n",
        "INFO throughput, memory and time are printed below\nINFO nothing else, 1 line, 2 words\n",
        "time (s),memory (GB)\nfast,small\n",
        "a,b\n1,2\n",
    ],
    ids=["history of one run", "sentence", "no numbers", "no quantity"],
)
def test_other_text_is_no_table_of_results(text: str) -> None:
    assert document(text).format != "tables"


def test_html_tables_and_text_of_a_readme_are_read() -> None:
    read = document(HTML, "README.md")
    (table,) = read.tables
    assert (read.format, table.line, table.section) == ("markdown", 4, "Results")
    assert table.columns == ["GPUs", "Step time (ms) ZeRO 1", "Step time (ms) ZeRO 3"]
    assert [[cell.text for cell in row] for row in table.rows] == [["8", "812.5", "1,120"], ["16", "421", "OOM"]]
    (gpus,) = read.figures["num_gpus"]
    assert (gpus.line, gpus.text) == (10, "The throughput is 251 samples/s on 8 GPUs.")


def test_a_table_in_a_literal_block_of_markdown_is_read() -> None:
    read = document(f"# Results\n\n```\nstarted\n{ALIGNED}\ndone in 2 s\n```\n", "README.md")
    (table,) = read.tables
    assert (table.line, table.section, table.columns[4]) == (5, "Results", "step(s)")
    assert [[cell.text for cell in row[3:5]] for row in table.rows] == [["4", "2.211"], ["8", "2.402"]]
    assert [line.line for line in read.unread.examples] == [9]


@pytest.mark.parametrize(
    "html",
    ["<table><tr><td>1", "<table>" * 50, "<table><tr><td rowspan=99999 colspan='x'>1</table>", "</td></table><tr>"],
)
def test_damaged_html_is_read_as_far_as_it_goes(html: str) -> None:
    assert document(f"# Results\n\n{html}\n", "README.md").format == "markdown"
