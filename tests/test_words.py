"""The words of CONTRIBUTING.md: phrases that stop a reader, and names that tell a value's history."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
NAMES = {"found", "one", "known", "told", "said", "wish", "words"}
MIGRATIONS = "migrations"
"""A migration is never changed once it has been applied."""
PHRASES = [
    "a slip",
    "cannot be so",
    "have it mended",
    "is no field",
    "in so many words",
    "is let go of",
    "mended",
    "nobody",
    "of its own accord",
    "planner's word",
    "somebody",
    "that wait for a person",
    "what came of",
    "what stands here",
    "whoever",
]


def python_files() -> list[Path]:
    files = [path for room in ("parlab", "runners") for path in (PROJECT / room).rglob("*.py")]
    return [path for path in files if MIGRATIONS not in path.parts]


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each variable, parameter and attribute that the code binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def readable_files() -> list[Path]:
    pages = [path for pattern in ("*.html", "*.txt") for path in (PROJECT / "templates").rglob(pattern)]
    return [*pages, *(PROJECT / "docs").rglob("*.md"), PROJECT / "README.md", PROJECT / "CONTRIBUTING.md"]


def test_a_name_says_what_a_value_is() -> None:
    files = python_files()
    assert len(files) > 300
    places = [
        f"{path.relative_to(PROJECT)}:{line}: {name}"
        for path in files
        for line, name in bound_names(ast.parse(path.read_text()))
        if name in NAMES
    ]
    assert places == []


@pytest.mark.parametrize("phrase", PHRASES)
def test_pages_and_documents_use_standard_terms(phrase: str) -> None:
    files = readable_files()
    assert len(files) > 80
    pattern = re.compile(rf"\b{re.escape(phrase)}\b", re.IGNORECASE)
    places = [
        f"{path.relative_to(PROJECT)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert places == []


def test_the_check_reads_every_kind_of_binding() -> None:
    code = (
        "def f(one, *, told=1):\n    found = [said for said in ()]\n    self.known = wish = 2\n    if words := 3: pass"
    )
    assert {name for _, name in bound_names(ast.parse(code))} == NAMES
