"""`{{ figure throughput experiment=slug }}`: what a report asks to stand in its text, read strictly. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .pivot import field_named

_WORD = re.compile(r'\s*(?:([A-Za-z][\w-]*)=("[^"]*"|[^\s"]+)|("[^"]*"|[^\s"=]+))(?=\s|$)')
_COMMA = re.compile(r"(?<!\\),")
_CONDITION = re.compile(r"\s*(.+?)\s*(!=|>=|<=|=|>|<)\s*(.*?)\s*$", re.DOTALL)

SOURCE = ("experiment", "version", "where", "title")
"""Options of everything that is made of runs."""


class Kind(NamedTuple):
    """What a directive may say: names after its kind, and options."""

    names: tuple[str, ...]
    """Known second words; empty: any word."""
    options: tuple[str, ...]
    needed: tuple[str, ...] = ()
    needs_name: bool = True
    is_inline: bool = False
    shape: str = ""
    """How it is written, for messages and the editor's help."""


KINDS: dict[str, Kind] = {
    "figure": Kind(
        (),
        (*SOURCE, "run", "x", "y", "by", "x_scale", "y_scale"),
        shape="{{ figure throughput experiment=slug y=step_time }}",
    ),
    "table pivot": Kind(
        (),
        (*SOURCE, "rows", "columns", "value", "aggregate", "unit", "decimals", "best", "details"),
        needed=("value",),
        needs_name=False,
        shape="{{ table pivot rows=parallel.schedule columns=train.micro_batch_size value=step_time_s }}",
    ),
    "table runs": Kind(
        (),
        (*SOURCE, "columns", "sort", "total", "decimals"),
        needs_name=False,
        shape='{{ table runs columns="GPUs=gpus, ms per sample=ms_per_sample" }}',
    ),
    "table run": Kind((), (*SOURCE, "run", "what"), needed=("run",), needs_name=False, shape="{{ table run run=1 }}"),
    "value": Kind(
        (),
        (*SOURCE, "run", "aggregate", "unit", "decimals"),
        is_inline=True,
        shape="{{ value samples_per_s run=3 }}",
    ),
    "config": Kind(
        (), (*SOURCE, "run", "only"), needed=("run",), needs_name=False, shape="{{ config run=1 only=parallel }}"
    ),
    "panel": Kind(
        ("configuration", "results"),
        (*SOURCE, "run", "caption", "width"),
        needed=("run",),
        shape="{{ panel configuration run=1 }}",
    ),
    "picture": Kind((), ("caption", "width"), shape="{{ picture 3f6c1a9e }}"),
}
_TABLES = sorted(kind.partition(" ")[2] for kind in KINDS if kind.startswith("table "))


class Directive(NamedTuple):
    """One directive as it was written; `problem` says what is wrong with it, and what to do."""

    source: str
    """The text between the braces, blanks made one: what a frozen block is found by."""
    kind: str
    name: str = ""
    options: Mapping[str, str] = {}
    problem: str = ""

    @property
    def is_inline(self) -> bool:
        return self.kind in KINDS and KINDS[self.kind].is_inline


def directive(text: str) -> Directive:
    """Read what stands between `{{` and `}}`; what cannot be read becomes a problem that a person understands."""
    # No database takes a NUL, and nobody means one.
    source = " ".join(text.replace("\0", "\N{REPLACEMENT CHARACTER}").split())
    try:
        kind, name, options = _read(source)
    except ValueError as error:
        first = source.partition(" ")[0]
        return Directive(source, first if first in KINDS else "", problem=str(error))
    return Directive(source, kind, name, options)


def _read(source: str) -> tuple[str, str, dict[str, str]]:
    words, options = _words(source)
    if not words:
        raise ValueError(f"empty braces; write for example {KINDS['figure'].shape}")
    kind, rest = words[0], words[1:]
    if kind == "table":
        if not rest or f"table {rest[0]}" not in KINDS:
            raise ValueError(f"table {rest[0] if rest else '(nothing)'} is unknown; there are {', '.join(_TABLES)}")
        kind, rest = f"table {rest[0]}", rest[1:]
    if kind not in KINDS:
        known = ", ".join(dict.fromkeys(name.partition(" ")[0] for name in KINDS))
        raise ValueError(f"directive {kind!r} is unknown; there are {known}")
    wanted = KINDS[kind]
    if len(rest) != int(wanted.needs_name):
        raise ValueError(
            f"{kind} takes {'one name' if wanted.needs_name else 'no further words'}, not {len(rest)};"
            f" write for example {wanted.shape}"
        )
    if wanted.names and rest[0] not in wanted.names:
        raise ValueError(f"{kind} {rest[0]!r} is unknown; there are {' and '.join(wanted.names)}")
    unknown = next((option for option in options if option not in wanted.options), None)
    if unknown is not None:
        raise ValueError(f"option {unknown!r} of {kind} is unknown; there are {', '.join(wanted.options)}")
    lacking = next((option for option in wanted.needed if not options.get(option)), None)
    if lacking is not None:
        raise ValueError(f"{kind} needs {lacking}=; write for example {wanted.shape}")
    return kind, rest[0] if rest else "", options


def _words(source: str) -> tuple[list[str], dict[str, str]]:
    words: list[str] = []
    options: dict[str, str] = {}
    at = 0
    while at < len(source):
        match = _WORD.match(source, at)
        if match is None:
            raise ValueError(
                f'cannot read {source[at : at + 40].strip()!r}; write option=value, and "quotes" around a value with'
                " blanks"
            )
        name, value = match[1], (match[2] or match[3]).strip('"')
        if name is None:
            words.append(value)
        elif name in options:
            raise ValueError(f"option {name!r} stands twice; keep one of them")
        else:
            options[name] = value
        at = match.end()
    return words, options


def listed(text: str) -> list[str]:
    """Split `a, b` into its parts; a comma behind a backslash belongs to its part."""
    parts = (part.replace("\\,", ",").strip() for part in _COMMA.split(text))
    return [part for part in parts if part]


def number(options: Mapping[str, str], name: str, *, most: int = 10**9) -> int | None:
    """Read an option that is a whole number; raises ValueError where it is none."""
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) > most:
        raise ValueError(f"{name}={text!r} is not a whole number from 0 to {most}")
    return int(text)


def chosen(records: Sequence[Mapping[str, Any]], where: str, fields: Sequence[str]) -> list[Mapping[str, Any]]:
    """Keep the records of which all conditions hold: `schedule=gpipe, micro_batch_size>=2`.

    Raises ValueError for what is no condition or names a field that no record has.
    """
    kept = list(records)
    for text in listed(where):
        match = _CONDITION.match(text)
        if match is None:
            raise ValueError(f'condition {text!r} cannot be read; write where="field=value, other>=8"')
        field = field_named(match[1], fields)
        kept = [record for record in kept if field in record and _holds(record[field], match[2], match[3])]
    return kept


def _holds(value: Any, operator: str, wanted: str) -> bool:
    try:
        left, right = float(value), float(wanted)
    except (TypeError, ValueError):
        same = str(value).strip().lower() == wanted.strip().lower()
        return same if operator == "=" else operator == "!=" and not same
    return {
        "=": left == right,
        "!=": left != right,
        ">": left > right,
        "<": left < right,
        ">=": left >= right,
        "<=": left <= right,
    }[operator]
