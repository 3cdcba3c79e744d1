"""The settings of the server: variables, defaults and comments, read from the text of parlab/settings.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import PROJECT

SETTINGS = PROJECT / "parlab" / "settings.py"
_PATHS = {"DATA_DIR": "PARLAB_DATA_DIR", "BASE_DIR": "checkout"}


def settings_rows(path: Path = SETTINGS) -> Iterator[tuple[str, str, str]]:
    """Yield variable, default and meaning of each setting, in the order of the module."""
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.FunctionDef):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and (row := _variable(node)):
                name, default = row
                meaning = _comment_above(lines, node.lineno) or _comment_above(lines, statement.lineno)
                yield f"`{name}`", default, meaning.removesuffix(".")


def _variable(call: ast.Call) -> tuple[str, str] | None:
    """Return variable and default of `env.str("NAME", default=...)` or `secret("name")`."""
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="env")), args=[ast.Constant(value=str(name))]):
            default = next((keyword.value for keyword in call.keywords if keyword.arg == "default"), None)
            return name, _default(default)
        case ast.Call(func=ast.Name(id="secret"), args=[ast.Constant(value=str(name))]):
            return f"PARLAB_{name.upper()}", f"`PARLAB_DATA_DIR/{name}`, created at the first start"
    return None


def _default(node: ast.expr | None) -> str:
    match node:
        case None | ast.Constant(value="") | ast.List(elts=[]):
            return "empty"
        case ast.Constant(value=bool(value)):
            return "on" if value else "off"
        case ast.Constant(value=float(value)) if value.is_integer():
            return f"{value:.0f}"
        case ast.Constant(value=int(value)):
            return str(value)
        case ast.List(elts=elements):
            return f"`{','.join(str(ast.literal_eval(element)) for element in elements)}`"
    return f"`{_text(node)}`"


def _text(node: ast.expr) -> str:
    """Return a default as a person would enter it: paths below the data directory, parts of a text joined."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.Name(id=name) if name in _PATHS:
            return _PATHS[name]
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return f"{_text(left)}/{_text(right)}"
        case ast.Call(func=ast.Name(id="str"), args=[value]) | ast.FormattedValue(value=value):
            return _text(value)
        case ast.JoinedStr(values=values):
            return "".join(_text(value) for value in values)
    return ast.unparse(node)


def _comment_above(lines: list[str], line: int) -> str:
    """Return the comment that ends in front of a line, counted from 1."""
    first = line - 1
    while first > 0 and lines[first - 1].lstrip().startswith("#") and "# ---" not in lines[first - 1]:
        first -= 1
    return " ".join(text.strip().removeprefix("#").strip() for text in lines[first : line - 1])
