"""The tables of the documentation agree with the code; `make docs-tables` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parlab.formats import FORMATS
from parlab.formats.exports.event_files import NAME as EVENT_FILES
from tests.docs.pages import DOCS, markdown_table, pages, tables_of, write_table
from tests.docs.settings import settings_rows
from tests.docs.tables import TABLES

WRITTEN_ELSEWHERE = {"scoreboard"}
PAGES = {name: page for page in pages() for name in tables_of(page)}


def test_each_table_stands_in_one_page() -> None:
    assert {name for page in pages() for name in tables_of(page)} == {*TABLES, *WRITTEN_ELSEWHERE}
    assert sum(len(tables_of(page)) for page in pages()) == len(PAGES)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_agrees_with_the_code(name: str) -> None:
    written = TABLES[name]()
    assert len(written.splitlines()) > 4
    assert tables_of(PAGES[name])[name] == written, "run `make docs-tables`"


def test_every_row_has_a_meaning() -> None:
    rows = [*settings_rows()]
    assert len(rows) > 20
    assert [name for name, _, meaning in rows if not meaning] == []
    assert [line for line in TABLES["formats"]().splitlines() if line.endswith("|  |")] == []


def test_the_details_of_formats_name_formats() -> None:
    text = (DOCS / "use" / "formats.md").read_text()
    details = text[text.index("| format | details |") : text.index("## How a file is read")]
    names = {name for line in details.splitlines()[2:] for name in re.findall(r"`([^`]+)`", line.split(" | ")[0])}
    assert len(names) > 30
    assert names - {*FORMATS, EVENT_FILES} == set()


def test_a_setting_is_read_with_its_default_and_its_comment(tmp_path: Path) -> None:
    module = tmp_path / "settings.py"
    module.write_text(
        "# Directory.\n# Of data.\nA = Path(env.str('A_DIR', default=str(BASE_DIR / 'data')))\n"
        "# --- section ---\nB = env.float('B', default=30.0)\n"
        "C = {\n    # Level.\n    'c': env.list('C', default=['x']),\n}\n"
    )
    assert [*settings_rows(module)] == [
        ("`A_DIR`", "`checkout/data`", "Directory. Of data"),
        ("`B`", "30", ""),
        ("`C`", "`x`", "Level"),
    ]


def test_a_table_is_written_between_its_comments_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- table: one -->\n<!-- /table -->\nb\n<!-- table: two -->\nold\n<!-- /table -->\nc\n")
    write_table(page, "one", markdown_table(["x"], [["`a|b`"]]))
    assert page.read_text() == (
        "a\n<!-- table: one -->\n\n| x |\n| --- |\n| `a\\|b` |\n\n<!-- /table -->\nb\n"
        "<!-- table: two -->\nold\n<!-- /table -->\nc\n"
    )
