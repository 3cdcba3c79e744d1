"""Tables, JSON and progress for the terminal: with `rich` where it is installed, plain text otherwise and in pipes."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

CELL_LENGTH = 60


def is_rich() -> bool:
    """Whether tables are drawn by rich: it is installed, and the output is a terminal."""
    return sys.stdout.isatty() and importlib.util.find_spec("rich") is not None


def print_json(value: Any) -> None:
    """Print JSON."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, empty: str = "nothing here yet") -> None:
    """Print rows; columns without any value are left out."""
    columns = [column for column in columns if any(row.get(column) not in (None, "") for row in rows)]
    if not rows:
        sys.stdout.write(f"{empty}\n")
    elif is_rich():
        _print_rich(columns, rows)
    else:
        table = [list(columns), *([table_cell(row.get(column)) for column in columns] for row in rows)]
        widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
        for row in table:
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths))
            sys.stdout.write(f"{line.rstrip()}\n")


def _print_rich(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    console: Any = importlib.import_module("rich.console").Console()
    table: Any = importlib.import_module("rich.table").Table(header_style="bold")
    text: Any = importlib.import_module("rich.text").Text
    for column in columns:
        is_number = all(isinstance(row.get(column), (int, float, type(None))) for row in rows)
        table.add_column(column, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(text(table_cell(row.get(column)), style=_style(column, row)) for column in columns))
    console.print(table)


_STYLES = {
    "finished": "green",
    "running": "cyan",
    "failed": "red",
    "oom": "magenta",
    "lost": "red",
    "time-limit": "red",
}


def _style(column: str, row: Mapping[str, Any]) -> str:
    return _STYLES.get(str(row.get("state")), "") if column == "state" else ""


def table_cell(value: Any) -> str:
    """Return a value as one line of text."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = json.dumps(value) if isinstance(value, (dict, list)) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= CELL_LENGTH else f"{text[: CELL_LENGTH - 3]}..."


class Progress:
    """Shows lines that change: in place on a terminal, otherwise each line again when its text has changed."""

    def __init__(self) -> None:
        self._shown: dict[int, str] = {}
        self._is_terminal = sys.stdout.isatty()

    def show(self, lines: Mapping[int, str]) -> None:
        """Show one line per number."""
        if self._is_terminal:
            if self._shown:
                sys.stdout.write(f"\x1b[{len(self._shown)}A")
            for line in lines.values():
                sys.stdout.write(f"\x1b[2K{line}\n")
        else:
            for number, line in lines.items():
                if self._shown.get(number) != line:
                    sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        self._shown = dict(lines)
