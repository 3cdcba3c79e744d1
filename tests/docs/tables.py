"""The tables of the documentation that are written from the code: `python -m tests.docs.tables` writes them.

One function per table; `tests/docs/test_tables.py` compares the pages with them.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Callable

from parlab.charts.registry import EXPERIMENT_FIGURES
from parlab.client.command.commands import command_parser
from parlab.formats import FORMATS
from parlab.formats.exports.event_files import NAME as EVENT_FILES
from runners.config import ENGINES
from tests.docs.pages import DOCS, PROJECT, markdown_table, pages, tables_of, write_table
from tests.docs.settings import settings_rows


def formats() -> str:
    """Each format of `--format` with the files that it reads."""
    rows = [(f"`{name}`", _reads(reader)) for name, reader in FORMATS.items()]
    rows.append((f"`{EVENT_FILES}`", "TensorBoard event files"))
    return markdown_table(["`--format`", "reads"], rows)


def _reads(reader: object) -> str:
    text = getattr(reader, "reads", "") or (reader.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return text.strip().removesuffix(".")


def figures() -> str:
    """Each figure of an experiment with the choices of its address."""
    rows = [
        (f"`{name}`", figure.title, ", ".join(f"`{choice}`" for choice in figure.choices))
        for name, figure in EXPERIMENT_FIGURES.items()
    ]
    return markdown_table(["name", "figure", "choices"], rows)


def engines() -> str:
    """Each engine with its purpose and the packages that it needs."""
    rows = [(f"`{row.name}`", row.purpose, ", ".join(row.requires)) for row in ENGINES.values()]
    return markdown_table(["engine", "purpose", "packages"], rows)


def settings() -> str:
    """Each environment variable that the server reads."""
    return markdown_table(["variable", "default", "meaning"], settings_rows())


def commands() -> str:
    """Each command of `parlab`."""
    actions = next(action for action in command_parser()._actions if isinstance(action, argparse._SubParsersAction))
    rows = [(f"`parlab {choice.dest}`", choice.help or "") for choice in actions._choices_actions]
    return markdown_table(["command", "effect"], rows)


def packages() -> str:
    """Each folder of code below `parlab` and `runners`, with the first line of its package."""
    places = ("parlab/__init__.py", "parlab/*/__init__.py", "runners/__init__.py", "runners/*/__init__.py")
    files = sorted(file for place in places for file in PROJECT.glob(place))
    docstrings = ((file.parent, ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))) for file in files)
    rows = [
        (f"`{folder.relative_to(PROJECT)}`", text.split("\n")[0].partition(" See docs/")[0].removesuffix("."))
        for folder, text in docstrings
        if text
    ]
    return markdown_table(["folder", "content"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "engines": engines,
    "figures": figures,
    "formats": formats,
    "packages": packages,
    "settings": settings,
}
"""Name in the comment of a page -> function that writes the table. `scoreboard` is written by `make bench-planner`."""


def main() -> int:
    """Write all tables; return 1 if a page has a table that nothing writes."""
    for page in pages():
        for name in tables_of(page):
            if name in TABLES:
                write_table(page, name, TABLES[name]())
                sys.stdout.write(f"{page.relative_to(DOCS.parent)}: {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
