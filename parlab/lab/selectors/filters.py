"""The filter language of lists: `engine:megatron gpus>=16 state:oom tag:v100 samples_per_s>100 text`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef, Q

from parlab.charts.format import UNIT_FACTORS
from parlab.lab.models import Finding, Run, RunNote, Star, Tag, TagOfRun
from runners.config import field_names
from runners.wire.protocol import RunState

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
    """A field of runs in filter terms."""

    lookup: str
    kind: str
    """"text" or "number"."""
    help: str
    unit: str = ""
    """Unit of the stored number; values in terms may use a prefix of it."""
    values: Sequence[str] = ()
    """All possible values, for fields with few values."""


FIELDS: dict[str, Field] = {
    "state": Field("state", "text", "state of a run", values=[state.value for state in RunState]),
    "origin": Field("origin", "text", "origin of the results", values=[origin.value for origin in Run.Origin]),
    "engine": Field("engine", "text", "engine"),
    "schedule": Field("schedule", "text", "pipeline schedule"),
    "precision": Field("precision", "text", "numeric precision"),
    "gpus": Field("gpus", "number", "number of GPUs, or of processes without GPUs"),
    "tp": Field("tensor_parallel_size", "number", "tensor parallel size"),
    "pp": Field("pipeline_parallel_size", "number", "pipeline stages"),
    "dp": Field("data_parallel_size", "number", "data parallel size"),
    "micro_batch": Field("micro_batch_size", "number", "micro batch size"),
    "global_batch": Field("global_batch_size", "number", "global batch size"),
    "samples_per_s": Field("samples_per_s", "number", "throughput"),
    "tokens_per_s": Field("tokens_per_s", "number", "throughput in tokens"),
    "step_time": Field("step_time_s", "number", "median step time", "s"),
    "ms_per_sample": Field("ms_per_sample", "number", "step time per sample in milliseconds"),
    "memory": Field("memory_max_bytes", "number", "peak memory of a rank", "B"),
    "mfu": Field("mfu", "number", "model FLOPs utilisation, 0 to 1 or in %", "%"),
    "run": Field("number", "number", "number of the run within its experiment"),
    "label": Field("label", "text", "label of the run"),
}
ALIASES = {
    "throughput": "samples_per_s", "samples": "samples_per_s", "tokens": "tokens_per_s", "step_time_s": "step_time",
    "memory_max_bytes": "memory", "micro_batch_size": "micro_batch", "global_batch_size": "global_batch",
    "tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "data_parallel_size": "dp", "gpu": "gpus",
}  # fmt: skip
EXPERIMENT_FIELDS = {
    "tag": "tag of the experiment or of a run",
    "name": "part of the name of the experiment",
    "owner": "owner of the experiment",
    "is": "is:archived, is:active (active runs) or is:doubted (open findings)",
}
MARK_FIELDS = {
    "starred": "user who starred the run: starred:anna, or starred:any",
    "note": "word in the note of the run; note:any for runs with a note",
    "archived": "archived:yes for archived runs, which are not listed otherwise",
}
"""What people add to runs."""
_CONFIG_FIELDS = frozenset(field_names())


class Problem(NamedTuple):
    """An invalid term, with a correction."""

    term: str
    message: str


class Filter(NamedTuple):
    """A filter as query conditions. One with an unknown field or value matches nothing: its remedy is a problem."""

    text: str
    experiments: Q
    """Condition on experiments."""
    runs: Q
    """Condition on runs; one run must fulfil all of it."""
    has_run_terms: bool
    wants_archived: bool
    wants_archived_runs: bool
    problems: list[Problem]

    def of_experiments(self) -> Q:
        """Return the condition on experiments: their own terms, and the existence of a run that fulfils the others."""
        if not self.has_run_terms:
            return self.experiments
        runs = Run.everything if self.wants_archived_runs else Run.objects
        return self.experiments & Q(Exists(runs.filter(self.runs, experiment=OuterRef("pk"))))


class _Conditions:
    """Accumulates the conditions of a filter term by term."""

    def __init__(self) -> None:
        self.experiments, self.runs = Q(), Q()
        self.has_run_terms = self.wants_archived = self.wants_archived_runs = False
        self.problems: list[Problem] = []
        self.is_possible = True

    def run_term(self, condition: Q) -> None:
        self.runs &= condition
        self.has_run_terms = True

    def filter(self, text: str) -> Filter:
        nothing = Q(pk__in=[])
        return Filter(
            text,
            self.experiments if self.is_possible else nothing,
            self.runs if self.is_possible else nothing,
            self.has_run_terms,
            self.wants_archived,
            self.wants_archived_runs,
            self.problems,
        )


class _InvalidTerm(ValueError):
    """An invalid term; the message contains a correction."""


class _UnfinishedTerm(_InvalidTerm):
    """A term without its value, as while it is typed: the other terms hold."""


def parse(text: str) -> Filter:
    """Parse a filter. All terms must hold; `a,b` matches either value; a leading `-` or `!=` negates a term."""
    # PostgreSQL text cannot contain NUL, so no row could match it.
    text = " ".join(text.replace("\0", " ").split())[:MAX_LENGTH]
    conditions = _Conditions()
    for number, match in enumerate(_TERM.finditer(text)):
        if number >= MAX_TERMS:
            conditions.problems.append(Problem("", f"Only the first {MAX_TERMS} terms are used; remove some."))
            break
        try:
            _add(conditions, match)
        except _InvalidTerm as error:
            conditions.problems.append(Problem(match[0], str(error)))
            conditions.is_possible &= isinstance(error, _UnfinishedTerm)
    return conditions.filter(text)


def split(text: str) -> tuple[str, list[str]]:
    """Split a filter into its field terms and its plain words, which a search for runs also looks up in labels."""
    terms, texts = [], []
    for match in _TERM.finditer(" ".join(text.replace("\0", " ").split())[:MAX_LENGTH]):
        if match["word"] is None:
            terms.append(match[0])
        elif word := match["word"].strip('"'):
            texts.append(word)
    return " ".join(terms), texts[:MAX_TERMS]


def _add(conditions: _Conditions, match: re.Match[str]) -> None:
    if match["word"] is not None:
        _add_word(conditions, match["word"].strip('"'))
        return
    field, operator = match["field"].lower(), "=" if match["operator"] == ":" else match["operator"]
    if match["operator"] == ":" and match["value"][:1] in ("<", ">"):
        # gpus:>=16 is accepted too.
        operator, value = _operator_of(match["value"])
    else:
        value = match["value"]
    values = _values(value)
    is_not = (match["minus"] == "-") != (operator == "!=")
    operator = "=" if operator == "!=" else operator
    if (field in EXPERIMENT_FIELDS or field in MARK_FIELDS) and operator != "=":
        raise _InvalidTerm(f"{field} is a text field: write {field}:{values[0]}.")
    if field == "tag":
        _add_tag(conditions, values, is_not)
        return
    if field in MARK_FIELDS:
        condition = _MARK_TERMS[field](conditions, values)
        conditions.run_term(~condition if is_not else condition)
        return
    if field in EXPERIMENT_FIELDS:
        condition = _EXPERIMENT_TERMS[field](conditions, values)
        conditions.experiments &= ~condition if is_not else condition
        return
    column = _field(field)
    if len(values) > 1 and operator != "=":
        raise _InvalidTerm(f"{field} {operator} takes one value, not {len(values)}.")
    condition = Q()
    for text in values:
        condition |= _condition(field, column, operator, text)
    conditions.run_term(~condition if is_not else condition)


def _operator_of(value: str) -> tuple[str, str]:
    operator = value[:2] if value[:2] in (">=", "<=") else value[:1]
    return operator, value[len(operator) :]


def _values(value: str) -> list[str]:
    quoted = value.startswith('"')
    values = [value.strip('"')] if quoted else [part for part in value.split(",") if part]
    if not values or not values[0]:
        raise _UnfinishedTerm("The value is missing: write, for example, state:oom or gpus>=16.")
    return values[:MAX_VALUES]


def _add_word(conditions: _Conditions, word: str) -> None:
    if word in ("", "-", "and", "AND"):
        return
    named = Q(name__icontains=word) | Q(slug__icontains=word) | Q(question__icontains=word) | Q(notes__icontains=word)
    conditions.experiments &= named | Q(Exists(Tag.objects.filter(experiment=OuterRef("pk"), name=word.lower())))


def _field(name: str) -> Field:
    name = ALIASES.get(name, name)
    if name in FIELDS:
        return FIELDS[name]
    if name in _CONFIG_FIELDS:
        return Field(f"resolved__{name.replace('.', '__')}", "config", "a field of the configuration")
    names = [*FIELDS, *EXPERIMENT_FIELDS, *MARK_FIELDS, *ALIASES, *_CONFIG_FIELDS]
    near = difflib.get_close_matches(name, names, 1, 0.6)
    fields = ", ".join([*EXPERIMENT_FIELDS, *MARK_FIELDS, *FIELDS])
    hint = f"did you mean {near[0]}?" if near else f"fields are {fields}."
    raise _InvalidTerm(f"Unknown field {name}; {hint}")


def _condition(name: str, field: Field, operator: str, value: str) -> Q:
    if field.kind == "config":
        return _config_condition(field, operator, value)
    if field.kind == "number":
        lookup = _COMPARISONS.get(operator)
        number = _operand(name, field, value)
        if lookup:
            return Q(**{f"{field.lookup}__{lookup}": number})
        # Lists show measured numbers with three digits, so a copied number must match all values that round to it.
        slack = 0.0 if number == int(number) and not field.unit else abs(number) * 0.005
        return Q(**{f"{field.lookup}__gte": number - slack, f"{field.lookup}__lte": number + slack})
    if operator != "=":
        raise _InvalidTerm(f"{name} is a text field without an order: write {name}:{value}.")
    value = value.lower()
    if field.values and value not in field.values:
        near = difflib.get_close_matches(value, field.values, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"use {', '.join(field.values)}."
        raise _InvalidTerm(f"Unknown {name} {value}; {hint}")
    if field.values:
        return Q(**{field.lookup: value})
    if value.endswith("*"):
        return Q(**{f"{field.lookup}__istartswith": value[:-1]})
    return Q(**{f"{field.lookup}__{'icontains' if name == 'label' else 'iexact'}": value})


def _operand(name: str, field: Field, text: str) -> float:
    """Parse a number with a prefix or unit: 1.5k, 8GiB, 500ms, 40%."""
    match = _NUMBER.match(text)
    unit = match["unit"] if match else ""
    factor = UNIT_FACTORS.get(field.unit, UNIT_FACTORS[""]).get(unit)
    example = {"s": "500ms", "B": "8GiB", "%": "40%"}.get(field.unit, "16")
    if match is None or factor is None:
        raise _InvalidTerm(f"Invalid number {text} for {name}: write, for example, {name}>{example}.")
    number = float(match["number"]) * factor
    if abs(number) > _LARGEST:
        raise _InvalidTerm(f"{text} is too large for {name}.")
    return number


def _config_condition(field: Field, operator: str, value: str) -> Q:
    """Compare with a field of the configuration, which may be a number, a string, a boolean or null."""
    lookup = _COMPARISONS.get(operator)
    match = _NUMBER.match(value)
    number = float(match["number"]) if match and not match["unit"] else None
    if number is not None and abs(number) > _LARGEST:
        raise _InvalidTerm(f"{value} is too large.")
    if lookup and number is None:
        raise _InvalidTerm(f"Invalid number {value}: only numbers can be compared.")
    if lookup:
        return Q(**{f"{field.lookup}__{lookup}": number})
    condition = Q(**{f"{field.lookup}__iexact": value})
    if number is not None:
        condition |= Q(**{field.lookup: int(number) if number == int(number) else number})
    constants = {"yes": True, "true": True, "no": False, "false": False, "none": None, "null": None}
    if value.lower() in constants:
        condition |= Q(**{field.lookup: constants[value.lower()]})
    return condition


def _add_tag(conditions: _Conditions, values: Sequence[str], is_not: bool) -> None:
    """Match tags of experiments and of runs: a run also has the tags of its experiment."""
    names = [value.lower() for value in values]
    of_experiment = Q(Exists(Tag.objects.filter(experiment=OuterRef("pk"), name__in=names)))
    of_a_run = Q(Exists(TagOfRun.objects.filter(run__experiment=OuterRef("pk"), run__hidden_at=None, name__in=names)))
    of_run = Q(Exists(TagOfRun.objects.filter(run=OuterRef("pk"), name__in=names)))
    of_run |= Q(Exists(Tag.objects.filter(experiment=OuterRef("experiment"), name__in=names)))
    conditions.experiments &= ~of_experiment if is_not else of_experiment | of_a_run
    conditions.runs &= ~of_run if is_not else of_run


def _starred(_conditions: _Conditions, values: Sequence[str]) -> Q:
    condition = Q()
    for value in values:
        stars = Star.objects.filter(run=OuterRef("pk"))
        condition |= Q(Exists(stars if value.lower() in ("any", "*") else stars.filter(user__username__iexact=value)))
    return condition


def _note(_conditions: _Conditions, values: Sequence[str]) -> Q:
    condition = Q()
    for value in values:
        notes = RunNote.objects.filter(run=OuterRef("pk"))
        condition |= Q(Exists(notes if value.lower() in ("any", "*") else notes.filter(text__icontains=value)))
    return condition


def _archived(conditions: _Conditions, values: Sequence[str]) -> Q:
    if len(values) > 1 or values[0].lower() not in ("yes", "no"):
        raise _InvalidTerm(f"Unknown term archived:{','.join(values)}; use archived:yes or archived:no.")
    conditions.wants_archived_runs = True
    return Q(hidden_at__isnull=values[0].lower() == "no")


_MARK_TERMS: dict[str, Callable[[_Conditions, Sequence[str]], Q]] = {
    "starred": _starred,
    "note": _note,
    "archived": _archived,
}


def _name(_conditions: _Conditions, values: Sequence[str]) -> Q:
    condition = Q()
    for value in values:
        condition |= Q(name__icontains=value.strip("*")) | Q(slug__icontains=value.strip("*"))
    return condition


def _owner(_conditions: _Conditions, values: Sequence[str]) -> Q:
    condition = Q()
    for value in values:
        condition |= Q(owner__username__iexact=value)
    return condition


def _is(conditions: _Conditions, values: Sequence[str]) -> Q:
    condition = Q()
    for value in values:
        if value == "archived":
            conditions.wants_archived = True
            condition |= Q(archived_at__isnull=False)
        elif value == "active":
            condition |= Q(Exists(Run.objects.active().filter(experiment=OuterRef("pk"))))
        elif value == "doubted":
            condition |= Q(Exists(Finding.objects.open().filter(experiment=OuterRef("pk"))))
        else:
            raise _InvalidTerm(f"Unknown term is:{value}; use is:archived, is:active or is:doubted.")
    return condition


_EXPERIMENT_TERMS: dict[str, Callable[[_Conditions, Sequence[str]], Q]] = {
    "name": _name,
    "owner": _owner,
    "is": _is,
}


def completions(tags: Sequence[str]) -> list[dict[str, Any]]:
    """Return the suggestions below the search field: the beginnings of terms, and their values if there are few."""
    values = {"tag": list(tags), "is": ["active", "doubted", "archived"], "archived": ["yes"], "starred": ["any"]}
    suggestions = [
        {"name": name, "sign": ":", "help": meaning, "values": values.get(name, [])}
        for name, meaning in (*EXPERIMENT_FIELDS.items(), *MARK_FIELDS.items())
    ]
    suggestions += [
        {
            "name": name,
            "sign": ">=" if field.kind == "number" else ":",
            "help": field.help,
            "values": list(field.values),
        }
        for name, field in FIELDS.items()
    ]
    return suggestions


def field_help() -> Iterator[tuple[str, str]]:
    """Yield all fields with their description, for the help beside the search field."""
    yield from EXPERIMENT_FIELDS.items()
    yield from MARK_FIELDS.items()
    for name, field in FIELDS.items():
        choices = f": {', '.join(field.values)}" if field.values else ""
        yield name, field.help + choices
