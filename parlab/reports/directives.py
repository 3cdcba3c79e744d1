"""Strict parser of report directives such as `{{ figure throughput experiment=slug }}`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .pivot import field_named

_WORD = re.compile(r'\s*(?:([A-Za-z][\w-]*)=("[^"]*"|[^\s"]+)|("[^"]*"|[^\s"=]+))(?=\s|$)')
_COMMA = re.compile(r"(?<!\\),")
_CONDITION = re.compile(r"\s*(.+?)\s*(!=|>=|<=|=|>|<)\s*(.*?)\s*$", re.DOTALL)

SOURCE = ("experiment", "version", "where", "title")
"""Options of all directives that show runs."""


class Kind(NamedTuple):
    """Syntax of a kind of directive: names and options."""

    names: tuple[str, ...]
    """Valid names after the kind; empty allows any name."""
    options: tuple[str, ...]
    required: tuple[str, ...] = ()
    needs_name: bool = True
    is_inline: bool = False
    shape: str = ""
    """Example, for error messages and the help of the editor."""


KINDS: dict[str, Kind] = {
    "figure": Kind(
        (),
        (*SOURCE, "run", "series", "x", "y", "by", "x_scale", "y_scale", "page"),
        shape="{{ figure throughput experiment=slug y=step_time }}",
    ),
    "table pivot": Kind(
        (),
        (*SOURCE, "rows", "columns", "value", "aggregate", "unit", "decimals", "best", "details"),
        required=("value",),
        needs_name=False,
        shape="{{ table pivot rows=parallel.schedule columns=train.micro_batch_size value=step_time_s }}",
    ),
    "table runs": Kind(
        (),
        (*SOURCE, "columns", "sort", "total", "decimals"),
        needs_name=False,
        shape='{{ table runs columns="GPUs=gpus, ms per sample=ms_per_sample" }}',
    ),
    "table spaces": Kind((), ("experiment", "title"), needs_name=False, shape="{{ table spaces }}"),
    "table run": Kind((), (*SOURCE, "run", "what"), required=("run",), needs_name=False, shape="{{ table run run=1 }}"),
    "value": Kind(
        (),
        (*SOURCE, "run", "aggregate", "unit", "decimals"),
        is_inline=True,
        shape="{{ value samples_per_s run=3 }}",
    ),
    "config": Kind(
        (), (*SOURCE, "run", "only"), required=("run",), needs_name=False, shape="{{ config run=1 only=parallel }}"
    ),
    "panel": Kind(
        ("configuration", "results"),
        (*SOURCE, "run", "caption", "width"),
        required=("run",),
        shape="{{ panel configuration run=1 }}",
    ),
    "picture": Kind((), ("caption", "width"), shape="{{ picture 3f6c1a9e }}"),
    "part": Kind((), ("page", "title"), required=("page",), shape="{{ part goodput page=/nodes/ }}"),
}
_TABLES = sorted(kind.partition(" ")[2] for kind in KINDS if kind.startswith("table "))


class Directive(NamedTuple):
    """A parsed directive; `problem` describes a syntax error and its remedy."""

    source: str
    """The text between the braces with normalised white space; the key of its block."""
    kind: str
    name: str = ""
    options: Mapping[str, str] = {}
    problem: str = ""

    @property
    def is_inline(self) -> bool:
        return self.kind in KINDS and KINDS[self.kind].is_inline


def directive(text: str) -> Directive:
    """Parse the text between `{{` and `}}`; a syntax error is returned as `problem`."""
    # PostgreSQL does not store NUL characters.
    source = " ".join(text.replace("\0", "\N{REPLACEMENT CHARACTER}").split())
    try:
        kind, name, options = _directive_parts(source)
    except ValueError as error:
        first = source.partition(" ")[0]
        return Directive(source, first if first in KINDS else "", problem=str(error))
    return Directive(source, kind, name, options)


def _directive_parts(source: str) -> tuple[str, str, dict[str, str]]:
    arguments, options = _arguments(source)
    if not arguments:
        raise ValueError(f"empty directive; write, for example, {KINDS['figure'].shape}")
    kind, rest = arguments[0], arguments[1:]
    if kind == "table":
        if not rest or f"table {rest[0]}" not in KINDS:
            raise ValueError(f"unknown table {rest[0] if rest else '(empty)'}; use one of {', '.join(_TABLES)}")
        kind, rest = f"table {rest[0]}", rest[1:]
    if kind not in KINDS:
        names = ", ".join(dict.fromkeys(name.partition(" ")[0] for name in KINDS))
        raise ValueError(f"unknown directive {kind!r}; use one of {names}")
    kind_syntax = KINDS[kind]
    if len(rest) != int(kind_syntax.needs_name):
        raise ValueError(
            f"{kind} takes {'one name' if kind_syntax.needs_name else 'no name'}, not {len(rest)};"
            f" write, for example, {kind_syntax.shape}"
        )
    if kind_syntax.names and rest[0] not in kind_syntax.names:
        raise ValueError(f"unknown {kind} {rest[0]!r}; use {' or '.join(kind_syntax.names)}")
    unknown = next((option for option in options if option not in kind_syntax.options), None)
    if unknown is not None:
        raise ValueError(f"unknown option {unknown!r} of {kind}; use {', '.join(kind_syntax.options)}")
    missing = next((option for option in kind_syntax.required if not options.get(option)), None)
    if missing is not None:
        raise ValueError(f"{kind} requires {missing}=; write, for example, {kind_syntax.shape}")
    return kind, rest[0] if rest else "", options


def _arguments(source: str) -> tuple[list[str], dict[str, str]]:
    arguments: list[str] = []
    options: dict[str, str] = {}
    at = 0
    while at < len(source):
        match = _WORD.match(source, at)
        if match is None:
            raise ValueError(
                f'cannot read {source[at : at + 40].strip()!r}; write option=value, with "quotes" around a value that'
                " contains spaces"
            )
        name, value = match[1], (match[2] or match[3]).strip('"')
        if name is None:
            arguments.append(value)
        elif name in options:
            raise ValueError(f"duplicate option {name!r}; remove one of them")
        else:
            options[name] = value
        at = match.end()
    return arguments, options


def listed(text: str) -> list[str]:
    """Split `a, b` at its commas; `\\,` is a comma within a part."""
    parts = (part.replace("\\,", ",").strip() for part in _COMMA.split(text))
    return [part for part in parts if part]


def number(options: Mapping[str, str], name: str, *, most: int = 10**9) -> int | None:
    """Return an option as a whole number, None if it is not set; raises ValueError for other texts."""
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) > most:
        raise ValueError(f"{name}={text!r} is not a whole number from 0 to {most}")
    return int(text)


def select_records(records: Sequence[Mapping[str, Any]], where: str, fields: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the records that match all conditions: `schedule=gpipe, micro_batch_size>=2`.

    Raises ValueError for a malformed condition and for a field that no record has.
    """
    selected = list(records)
    for text in listed(where):
        match = _CONDITION.match(text)
        if match is None:
            raise ValueError(f'invalid condition {text!r}; write where="field=value, other>=8"')
        field = field_named(match[1], fields)
        selected = [record for record in selected if field in record and _matches(record[field], match[2], match[3])]
    return selected


def _matches(value: Any, operator: str, operand: str) -> bool:
    try:
        left, right = float(value), float(operand)
    except (TypeError, ValueError):
        same = str(value).strip().lower() == operand.strip().lower()
        return same if operator == "=" else operator == "!=" and not same
    return {
        "=": left == right,
        "!=": left != right,
        ">": left > right,
        "<": left < right,
        ">=": left >= right,
        "<=": left <= right,
    }[operator]
