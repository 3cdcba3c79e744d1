"""The language in which lists are filtered: `engine:megatron gpus>=16 state:oom tag:v100 samples_per_s>100 words`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef, Q

from parlab.charts.format import UNIT_FACTORS
from parlab.lab.models import Finding, Run, Tag
from runners.config import field_names
from runners.protocol import RunState

MAX_LENGTH = 400
MAX_TERMS = 20
MAX_VALUES = 20
_TERM = re.compile(
    r"""(?P<minus>-?)(?P<field>[A-Za-z_][\w.]*)(?P<operator>!=|>=|<=|[:=<>])(?P<value>"[^"]*"?|\S*)"""
    r"""|(?P<word>"[^"]*"?|\S+)"""
)
_NUMBER = re.compile(r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?P<unit>[A-Za-zµ%]*)\Z", re.I)
_COMPARISONS = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
_LARGEST = 1e300


class Field(NamedTuple):
    """What a term may ask of a run."""

    lookup: str
    kind: str
    """"text" or "number"."""
    help: str
    unit: str = ""
    """Unit of the stored number; a value may be written with a prefix of it."""
    values: Sequence[str] = ()
    """All values there are, where they are few."""


FIELDS: dict[str, Field] = {
    "state": Field("state", "text", "state of a run", values=[state.value for state in RunState]),
    "origin": Field("origin", "text", "where its numbers come from", values=[origin.value for origin in Run.Origin]),
    "engine": Field("engine", "text", "engine that trains"),
    "schedule": Field("schedule", "text", "pipeline schedule"),
    "precision": Field("precision", "text", "arithmetic"),
    "gpus": Field("gpus", "number", "GPUs, or processes without any"),
    "tp": Field("tensor_parallel_size", "number", "tensor parallel size"),
    "pp": Field("pipeline_parallel_size", "number", "pipeline stages"),
    "dp": Field("data_parallel_size", "number", "data parallel size"),
    "micro_batch": Field("micro_batch_size", "number", "micro batch size"),
    "global_batch": Field("global_batch_size", "number", "global batch size"),
    "samples_per_s": Field("samples_per_s", "number", "throughput"),
    "tokens_per_s": Field("tokens_per_s", "number", "throughput in tokens"),
    "step_time": Field("step_time_s", "number", "median time of a step", "s"),
    "ms_per_sample": Field("ms_per_sample", "number", "milliseconds of a step per sample"),
    "memory": Field("memory_max_bytes", "number", "peak memory of a rank", "B"),
    "mfu": Field("mfu", "number", "model FLOPs utilisation, 0 to 1 or in %", "%"),
    "run": Field("number", "number", "number of a run within its experiment"),
    "label": Field("label", "text", "name of a run's point"),
}
ALIASES = {
    "throughput": "samples_per_s", "samples": "samples_per_s", "tokens": "tokens_per_s", "step_time_s": "step_time",
    "memory_max_bytes": "memory", "micro_batch_size": "micro_batch", "global_batch_size": "global_batch",
    "tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "data_parallel_size": "dp", "gpu": "gpus",
}  # fmt: skip
EXPERIMENT_FIELDS = {
    "tag": "a tag of the experiment",
    "name": "a part of the experiment's name",
    "owner": "who made it",
    "is": "is:archived, is:active (runs go on) or is:doubted (open findings)",
}
_CONFIG_FIELDS = frozenset(field_names())


class Problem(NamedTuple):
    """A term that makes no sense, and what to write instead."""

    term: str
    message: str


class Filter(NamedTuple):
    """A filter as conditions; terms with problems are left out of them."""

    text: str
    experiments: Q
    """What holds of an experiment itself."""
    runs: Q
    """What one of its runs must fulfil, all at once."""
    has_run_terms: bool
    wants_archived: bool
    problems: list[Problem]

    def of_experiments(self) -> Q:
        """Condition on experiments: their own terms, and a run for those of runs."""
        if not self.has_run_terms:
            return self.experiments
        return self.experiments & Q(Exists(Run.objects.filter(self.runs, experiment=OuterRef("pk"))))


class _Parsed:
    """Collects the conditions of a filter term by term."""

    def __init__(self) -> None:
        self.experiments, self.runs = Q(), Q()
        self.has_run_terms = self.wants_archived = False
        self.problems: list[Problem] = []

    def run_term(self, condition: Q) -> None:
        self.runs &= condition
        self.has_run_terms = True


class _Nonsense(ValueError):
    """A term that cannot be read; says why and what to write."""


def parse(text: str) -> Filter:
    """Read a filter. Terms are joined by "and"; `a,b` means one of them, `-` in front or `!=` the opposite."""
    # No text of PostgreSQL holds a NUL, so nothing could be found by one.
    text = " ".join(text.replace("\0", " ").split())[:MAX_LENGTH]
    parsed = _Parsed()
    for number, match in enumerate(_TERM.finditer(text)):
        if number >= MAX_TERMS:
            parsed.problems.append(Problem("", f"Only the first {MAX_TERMS} terms count; leave some out."))
            break
        try:
            _add(parsed, match)
        except _Nonsense as error:
            parsed.problems.append(Problem(match[0], str(error)))
    return Filter(text, parsed.experiments, parsed.runs, parsed.has_run_terms, parsed.wants_archived, parsed.problems)


def split(text: str) -> tuple[str, list[str]]:
    """Part a filter into its terms and its words: where runs are chosen, words are looked for in runs too."""
    terms, words = [], []
    for match in _TERM.finditer(" ".join(text.replace("\0", " ").split())[:MAX_LENGTH]):
        if match["word"] is None:
            terms.append(match[0])
        elif word := match["word"].strip('"'):
            words.append(word)
    return " ".join(terms), words[:MAX_TERMS]


def _add(parsed: _Parsed, match: re.Match[str]) -> None:
    if match["word"] is not None:
        _add_word(parsed, match["word"].strip('"'))
        return
    field, operator = match["field"].lower(), "=" if match["operator"] == ":" else match["operator"]
    if match["operator"] == ":" and match["value"][:1] in ("<", ">"):
        # People write gpus:>=16 too.
        operator, value = _operator_of(match["value"])
    else:
        value = match["value"]
    values = _values(value)
    is_not = (match["minus"] == "-") != (operator == "!=")
    operator = "=" if operator == "!=" else operator
    if field in EXPERIMENT_FIELDS:
        if operator != "=":
            raise _Nonsense(f"{field} is a text: write {field}:{values[0]}.")
        condition = _EXPERIMENT_TERMS[field](parsed, values)
        parsed.experiments &= ~condition if is_not else condition
        return
    found = _field(field)
    if len(values) > 1 and operator != "=":
        raise _Nonsense(f"{field} {operator} takes one value, not {len(values)}.")
    condition = Q()
    for one in values:
        condition |= _condition(field, found, operator, one)
    parsed.run_term(~condition if is_not else condition)


def _operator_of(value: str) -> tuple[str, str]:
    operator = value[:2] if value[:2] in (">=", "<=") else value[:1]
    return operator, value[len(operator) :]


def _values(value: str) -> list[str]:
    quoted = value.startswith('"')
    found = [value.strip('"')] if quoted else [part for part in value.split(",") if part]
    if not found or not found[0]:
        raise _Nonsense("There is no value behind it: write, for example, state:oom or gpus>=16.")
    return found[:MAX_VALUES]


def _add_word(parsed: _Parsed, word: str) -> None:
    if word in ("", "-", "and", "AND"):
        return
    named = Q(name__icontains=word) | Q(slug__icontains=word) | Q(question__icontains=word) | Q(notes__icontains=word)
    parsed.experiments &= named | Q(Exists(Tag.objects.filter(experiment=OuterRef("pk"), name=word.lower())))


def _field(name: str) -> Field:
    name = ALIASES.get(name, name)
    if name in FIELDS:
        return FIELDS[name]
    if name in _CONFIG_FIELDS:
        return Field(f"resolved__{name.replace('.', '__')}", "config", "a field of the configuration")
    known = [*FIELDS, *EXPERIMENT_FIELDS, *ALIASES, *_CONFIG_FIELDS]
    near = difflib.get_close_matches(name, known, 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join([*EXPERIMENT_FIELDS, *FIELDS])}."
    raise _Nonsense(f"No run has a field {name}; {hint}")


def _condition(name: str, field: Field, operator: str, value: str) -> Q:
    if field.kind == "config":
        return _config_condition(field, operator, value)
    if field.kind == "number":
        lookup = _COMPARISONS.get(operator)
        number = _number(name, field, value)
        if lookup:
            return Q(**{f"{field.lookup}__{lookup}": number})
        # Measured numbers are shown with three digits: who copies one means what rounds to it.
        slack = 0.0 if number == int(number) and not field.unit else abs(number) * 0.005
        return Q(**{f"{field.lookup}__gte": number - slack, f"{field.lookup}__lte": number + slack})
    if operator != "=":
        raise _Nonsense(f"{name} is a text and has no order: write {name}:{value}.")
    value = value.lower()
    if field.values and value not in field.values:
        near = difflib.get_close_matches(value, field.values, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"use {', '.join(field.values)}."
        raise _Nonsense(f"No {name} is called {value}; {hint}")
    if field.values:
        return Q(**{field.lookup: value})
    if value.endswith("*"):
        return Q(**{f"{field.lookup}__istartswith": value[:-1]})
    return Q(**{f"{field.lookup}__{'icontains' if name == 'label' else 'iexact'}": value})


def _number(name: str, field: Field, text: str) -> float:
    """Read a number with a prefix or unit: 1.5k, 8GiB, 500ms, 40%."""
    match = _NUMBER.match(text)
    unit = match["unit"] if match else ""
    factor = UNIT_FACTORS.get(field.unit, UNIT_FACTORS[""]).get(unit)
    example = {"s": "500ms", "B": "8GiB", "%": "40%"}.get(field.unit, "16")
    if match is None or factor is None:
        raise _Nonsense(f"{text} is no number for {name}: write, for example, {name}>{example}.")
    number = float(match["number"]) * factor
    if abs(number) > _LARGEST:
        raise _Nonsense(f"{text} is beyond any {name}.")
    return number


def _config_condition(field: Field, operator: str, value: str) -> Q:
    """Compare with a field of the configuration, which may hold a number, a text, yes/no or nothing."""
    lookup = _COMPARISONS.get(operator)
    match = _NUMBER.match(value)
    number = float(match["number"]) if match and not match["unit"] else None
    if number is not None and abs(number) > _LARGEST:
        raise _Nonsense(f"{value} is beyond any field.")
    if lookup and number is None:
        raise _Nonsense(f"{value} is no number, and only numbers have an order.")
    if lookup:
        return Q(**{f"{field.lookup}__{lookup}": number})
    condition = Q(**{f"{field.lookup}__iexact": value})
    if number is not None:
        condition |= Q(**{field.lookup: int(number) if number == int(number) else number})
    words = {"yes": True, "true": True, "no": False, "false": False, "none": None, "null": None}
    if value.lower() in words:
        condition |= Q(**{field.lookup: words[value.lower()]})
    return condition


def _tag(_parsed: _Parsed, values: Sequence[str]) -> Q:
    return Q(Exists(Tag.objects.filter(experiment=OuterRef("pk"), name__in=[value.lower() for value in values])))


def _name(_parsed: _Parsed, values: Sequence[str]) -> Q:
    condition = Q()
    for value in values:
        condition |= Q(name__icontains=value.strip("*")) | Q(slug__icontains=value.strip("*"))
    return condition


def _owner(_parsed: _Parsed, values: Sequence[str]) -> Q:
    condition = Q()
    for value in values:
        condition |= Q(owner__username__iexact=value)
    return condition


def _is(parsed: _Parsed, values: Sequence[str]) -> Q:
    condition = Q()
    for value in values:
        if value == "archived":
            parsed.wants_archived = True
            condition |= Q(archived_at__isnull=False)
        elif value == "active":
            condition |= Q(Exists(Run.objects.active().filter(experiment=OuterRef("pk"))))
        elif value == "doubted":
            condition |= Q(Exists(Finding.objects.open().filter(experiment=OuterRef("pk"))))
        else:
            raise _Nonsense(f"is:{value} means nothing; use is:archived, is:active or is:doubted.")
    return condition


_EXPERIMENT_TERMS: dict[str, Callable[[_Parsed, Sequence[str]], Q]] = {
    "tag": _tag,
    "name": _name,
    "owner": _owner,
    "is": _is,
}


def completions(tags: Sequence[str]) -> list[dict[str, Any]]:
    """What a term may begin with, and its values where they are few: for the suggestions under the search."""
    known = {"tag": list(tags), "is": ["active", "doubted", "archived"]}
    found = [
        {"name": name, "sign": ":", "help": meaning, "values": known.get(name, [])}
        for name, meaning in EXPERIMENT_FIELDS.items()
    ]
    found += [
        {
            "name": name,
            "sign": ">=" if field.kind == "number" else ":",
            "help": field.help,
            "values": list(field.values),
        }
        for name, field in FIELDS.items()
    ]
    return found


def field_help() -> Iterator[tuple[str, str]]:
    """List the fields and what they mean, for the help beside the search."""
    yield from EXPERIMENT_FIELDS.items()
    for name, field in FIELDS.items():
        choices = f": {', '.join(field.values)}" if field.values else ""
        yield name, field.help + choices
