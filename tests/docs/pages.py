"""The pages of the documentation, and the tables in them that are written from the code.

A table stands between two comments: `<!-- table: engines -->` and `<!-- /table -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
TABLE = re.compile(r"(?<=<!-- table: )(?P<name>[a-z]+) -->\n(?P<content>.*?)(?=<!-- /table -->)", re.S)


def pages() -> list[Path]:
    """Return all pages, with those at the top of the repository."""
    return [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def tables_of(page: Path) -> dict[str, str]:
    """Return the content of each table of a page by its name."""
    return {
        match["name"]: match["content"].strip("\n") + "\n" for match in TABLE.finditer(page.read_text(encoding="utf-8"))
    }


def write_table(page: Path, name: str, content: str) -> None:
    """Replace the content of one table."""

    def replaced(match: re.Match[str]) -> str:
        if match["name"] != name:
            return match[0]
        # With empty lines, because Markdown in a block of HTML is text.
        return f"{name} -->\n\n{content}\n"

    page.write_text(TABLE.sub(replaced, page.read_text(encoding="utf-8")), encoding="utf-8")


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; a cell may contain code with bars."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
