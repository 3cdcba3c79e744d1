"""Tables of a report as CSV and as LaTeX. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from .blocks import TableBlock, Text
from .source import headings

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}",
    "±": r"$\pm$", "\N{ALMOST EQUAL TO}": r"$\approx$",
    "\N{EN DASH}": "--", "\N{NARROW NO-BREAK SPACE}": r"\,", "\N{MICRO SIGN}": r"\textmu{}",
    "\N{SUPERSCRIPT TWO}": r"\textsuperscript{2}", "\N{MULTIPLICATION SIGN}": r"$\times$",
}  # fmt: skip


def table_csv(numbers: Sequence[Sequence[Any]]) -> str:
    """Return rows as CSV, with texts quoted that a spreadsheet would run as formulas."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([[_without_formula(value) for value in row] for row in numbers])
    return stream.getvalue()


def _without_formula(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    text = str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def table_latex(block: TableBlock, *, label: str, findings: Sequence[str] = ()) -> str:
    """Return a LaTeX table (package booktabs); triangles mark numbers with findings, explained below the table."""
    columns = "".join("r" if text.is_number else "l" for text in block.header)
    lines = [r"\begin{table}", r"  \centering"]
    if block.title or block.caption:
        caption = ". ".join(part.rstrip(".") for part in (block.title, block.caption) if part)
        lines.append(f"  \\caption{{{latex(caption)}.}}")
    lines += [f"  \\label{{tab:{label}}}", f"  \\begin{{tabular}}{{{columns}}}", r"    \toprule", *_head(block)]
    lines += [r"    \midrule", *(f"    {' & '.join(_cell_latex(text) for text in row)} \\\\" for row in block.rows)]
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    marked = sorted({number for row in [block.header, *block.rows] for text in row for number in text.doubts})
    lines += [
        f"  \\par\\footnotesize $^{{\\triangle {number}}}$ {latex(findings[number - 1])}"
        for number in marked
        if number <= len(findings)
    ]
    return "\n".join([*lines, r"\end{table}", ""])


def _head(block: TableBlock) -> list[str]:
    values = len(block.header) - block.names
    if not block.spanning or values < 2:
        return [f"    {' & '.join(_cell_latex(text) for text in headings(block))} \\\\"]
    first = block.names + 1
    blank = " & " * block.names
    return [
        f"    {blank}\\multicolumn{{{values}}}{{c}}{{{latex(block.spanning)}}} \\\\",
        f"    \\cmidrule(lr){{{first}-{len(block.header)}}}",
        f"    {' & '.join(_cell_latex(text) for text in block.header)} \\\\",
    ]


def _cell_latex(text: Text) -> str:
    escaped = latex(text.text)
    marks = "".join(f"$^{{\\triangle {number}}}$" for number in text.doubts)
    return (f"\\textbf{{{escaped}}}" if text.is_best else escaped) + marks


def latex(text: str) -> str:
    """Return a text on one line, escaped for LaTeX."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split(" ")).replace("\n", " "))
