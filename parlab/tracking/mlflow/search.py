"""MLflow's filter and order language -> conditions of the database.

    metrics.loss < 0.5 AND params."learning rate" = '0.01' AND tags.owner LIKE 'a%' AND attributes.status = 'FINISHED'

Source: MLflow's documentation, "Search Runs" and "Search Experiments". Terms are joined by AND; there is no OR.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import Case, Exists, F, IntegerField, OuterRef, Q, QuerySet, Subquery, When
from django.db.models.expressions import OrderBy

from parlab.lab.models import Experiment, ExperimentLabel, LatestMetric, RunParameter, RunTag, TrackedRun

from .protocol import invalid

MAX_LENGTH = 20_000
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>'(?:[^']|'')*')
      | (?P<quoted>"[^"]*"|`[^`]*`)
      | (?P<operator><=|>=|!=|<>|==|=|<|>)
      | (?P<punctuation>[(),])
      | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<word>[A-Za-z_][\w/.:-]*(?:"[^"]*"|`[^`]*`)?)
    )""",
    re.VERBOSE,
)
_KINDS = {
    "metric": "metric", "metrics": "metric",
    "param": "param", "params": "param", "parameter": "param", "parameters": "param",
    "tag": "tag", "tags": "tag",
    "attribute": "attribute", "attributes": "attribute", "attr": "attribute", "run": "attribute",
    "dataset": "dataset", "datasets": "dataset",
}  # fmt: skip
_TEXT = {"=", "!=", "LIKE", "ILIKE", "IN", "NOT IN", "IS NULL", "IS NOT NULL"}
_NUMBER = {"=", "!=", "<", "<=", ">", ">="}
_LOOKUPS = {"=": "exact", "<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
_RUN_ATTRIBUTES = {
    "run_id": "uuid", "run_name": "name", "status": "status", "user_id": "user_name", "start_time": "start_ms",
    "end_time": "end_ms", "created": "start_ms", "Created": "start_ms", "Run Name": "name", "Run ID": "uuid",
    "run name": "name", "Start Time": "start_ms", "experiment_id": "run__experiment_id",
}  # fmt: skip
_EXPERIMENT_ATTRIBUTES = {
    "name": "name", "experiment_id": "pk", "creation_time": "created_at", "last_update_time": "updated_at",
}  # fmt: skip
_NUMERIC = {"start_ms", "end_ms"}
_TIMES = {"created_at", "updated_at"}


Combinable = Any
"""A condition that `filter` takes: Q, Exists or its negation, which have no common type."""


class Term(NamedTuple):
    """One comparison of a filter."""

    kind: str
    key: str
    operator: str
    value: Any
    """A text, a number or, for IN, a tuple of texts."""


class _Token(NamedTuple):
    kind: str
    text: str


def parse_filter(text: str) -> list[Term]:
    """Split a filter into its terms; raises MlflowError naming the place that cannot be read."""
    if len(text) > MAX_LENGTH:
        raise invalid(f"Invalid filter of {len(text)} characters; use at most {MAX_LENGTH}")
    tokens = list(_tokens(text))
    terms: list[Term] = []
    position = 0
    while position < len(tokens):
        if terms:
            if tokens[position].text.upper() != "AND":
                raise _unreadable(text, tokens[position].text, "expected AND")
            position += 1
        term, position = _term(text, tokens, position)
        terms.append(term)
    return terms


def _tokens(text: str) -> Iterator[_Token]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise _unreadable(text, text[position : position + 20], "unexpected text")
        yield _Token(match.lastgroup, match[match.lastgroup])
        position = match.end()


def _term(text: str, tokens: Sequence[_Token], position: int) -> tuple[Term, int]:
    def token(offset: int) -> _Token:
        at = position + offset
        if at >= len(tokens):
            raise _unreadable(text, "the end", "a term is a key, a comparison and a value")
        return tokens[at]

    kind, key = _identifier(text, token(0))
    operator, used = token(1).text.upper(), 2
    if operator in ("NOT", "IS"):
        following = [token(2).text.upper()]
        if operator == "IS" and following == ["NOT"]:
            following.append(token(3).text.upper())
        operator, used = " ".join([operator, *following]), 2 + len(following)
    operator = {"<>": "!=", "==": "="}.get(operator, operator)
    if operator in ("IS NULL", "IS NOT NULL"):
        return Term(kind, key, operator, None), position + used
    if operator in ("IN", "NOT IN"):
        values, used = _list(text, token, used)
        return Term(kind, key, operator, values), position + used
    if operator not in _TEXT | _NUMBER:
        raise _unreadable(text, operator, f"expected one of {', '.join(sorted(_TEXT | _NUMBER))}")
    return Term(kind, key, operator, _value(text, token(used))), position + used + 1


def _list(text: str, token: Any, used: int) -> tuple[tuple[str, ...], int]:
    if token(used).text != "(":
        raise _unreadable(text, token(used).text, "expected a list like ('a', 'b')")
    values: list[str] = []
    used += 1
    while True:
        value = _value(text, token(used))
        values.append(str(value))
        used += 1
        if token(used).text == ")":
            return tuple(values), used + 1
        if token(used).text != ",":
            raise _unreadable(text, token(used).text, "expected a comma or )")
        used += 1


def _identifier(text: str, token: _Token) -> tuple[str, str]:
    if token.kind not in ("word", "quoted"):
        raise _unreadable(text, token.text, "expected a key like metrics.loss")
    if token.kind == "quoted":
        return "attribute", token.text[1:-1]
    head, dot, key = token.text.partition(".")
    if not dot:
        return "attribute", token.text
    kind = _KINDS.get(head)
    if kind is None:
        raise invalid(
            f"Invalid entity type {head!r} in filter {text[:200]!r}; use metrics, params, tags, attributes or datasets"
        )
    if key[:1] in ('"', "`"):
        key = key[1:-1]
    if not key:
        raise _unreadable(text, token.text, "expected a key behind the dot")
    return kind, key


def _value(text: str, token: _Token) -> Any:
    if token.kind == "string":
        return token.text[1:-1].replace("''", "'")
    if token.kind == "quoted":
        return token.text[1:-1]
    if token.kind == "number":
        return float(token.text)
    raise _unreadable(text, token.text, "expected a number or a text in quotes")


def _unreadable(text: str, place: str, why: str) -> Exception:
    return invalid(f"Invalid filter {text[:200]!r}: cannot read {place[:60]!r}; {why}")


# --- runs ------------------------------------------------------------------------------------------------------------


def filtered_runs(runs: QuerySet[TrackedRun], text: str) -> QuerySet[TrackedRun]:
    """Keep the runs that match every term of a filter."""
    return filtered_by(runs, parse_filter(text))


def filtered_by(runs: QuerySet[TrackedRun], terms: Sequence[Term]) -> QuerySet[TrackedRun]:
    """Keep the runs that match every term."""
    for term in terms:
        runs = runs.filter(_dataset_condition(term, runs) if term.kind == "dataset" else _run_condition(term))
    return runs


def _run_condition(term: Term) -> Combinable:
    if term.kind == "attribute":
        field = _RUN_ATTRIBUTES.get(term.key)
        if field is None:
            raise invalid(f"Invalid attribute key {term.key!r}; use one of {', '.join(sorted(_RUN_ATTRIBUTES))}")
        return _compare(term, field, is_number=field in _NUMERIC)
    if term.kind == "metric":
        return _related(LatestMetric, term, is_number=True)
    return _related(RunParameter if term.kind == "param" else RunTag, term)


def _related(model: Any, term: Term, *, is_number: bool = False) -> Combinable:
    rows = model.objects.filter(tracked=OuterRef("pk"), key=term.key)
    if term.operator == "IS NULL":
        return ~Exists(rows)
    if term.operator == "IS NOT NULL":
        return Exists(rows)
    condition = _compare(term, "value", is_number=is_number)
    if model is LatestMetric and term.operator == "!=":
        condition |= Q(value=None)  # NaN, which differs from every number
    return Exists(rows.filter(condition))


def _compare(term: Term, field: str, *, is_number: bool = False) -> Q:
    allowed = _NUMBER if is_number else _TEXT
    if term.operator not in allowed:
        raise invalid(
            f"Invalid comparator {term.operator!r} for {term.kind} {term.key!r}; use one of"
            f" {', '.join(sorted(allowed))}"
        )
    value = term.value
    if is_number and not isinstance(value, float):
        raise invalid(f"Invalid value {value!r} for {term.kind} {term.key!r}: expected a number without quotes")
    if not is_number and isinstance(value, float):
        raise invalid(f"Invalid value {value!r} for {term.kind} {term.key!r}: expected a text in quotes")
    if field == "run__experiment_id":
        values = value if isinstance(value, tuple) else (value,)
        condition = Q(**{f"{field}__in": [int(item) for item in values if str(item).isdecimal()]})
        return ~condition if term.operator in ("!=", "NOT IN") else condition
    if term.operator in ("IN", "NOT IN"):
        condition = Q(**{f"{field}__in": value})
        return condition if term.operator == "IN" else ~condition
    if term.operator in ("LIKE", "ILIKE"):
        return Q(**{f"{field}__{'iregex' if term.operator == 'ILIKE' else 'regex'}": _pattern(value)})
    if term.operator == "!=":
        return ~Q(**{field: value}) & Q(**{f"{field}__isnull": False})
    return Q(**{f"{field}__{_LOOKUPS[term.operator]}": value})


def _dataset_condition(term: Term, runs: QuerySet[TrackedRun]) -> Q:
    """Select runs by the datasets that they have logged, which are few: a JSON column that is compared here."""
    if term.key not in ("name", "digest", "context"):
        raise invalid(f"Invalid dataset key {term.key!r}; use name, digest or context")
    if term.operator not in _TEXT - {"IS NULL", "IS NOT NULL"} or isinstance(term.value, float):
        raise invalid(f"Invalid comparison of dataset {term.key!r}; use =, !=, LIKE, ILIKE or IN with texts in quotes")
    rows = runs.exclude(inputs=[]).values_list("pk", "inputs")
    return Q(
        pk__in=[pk for pk, inputs in rows if any(text_matches(term, text) for text in _datasets(inputs, term.key))]
    )


def _datasets(inputs: Sequence[Any], key: str) -> Iterator[str]:
    for item in inputs:
        if key != "context":
            yield str((item.get("dataset") or {}).get(key, ""))
            continue
        for tag in item.get("tags") or []:
            if tag.get("key") == "mlflow.data.context":
                yield str(tag.get("value", ""))


def _pattern(like: str) -> str:
    """Write a LIKE pattern as a regular expression."""
    parts = (".*" if letter == "%" else "." if letter == "_" else re.escape(letter) for letter in like)
    return f"^{''.join(parts)}$"


def ordered_runs(runs: QuerySet[TrackedRun], clauses: Sequence[Any]) -> QuerySet[TrackedRun]:
    """Sort runs by clauses like `metrics.loss DESC`; runs without the value come last."""
    order: list[OrderBy] = []
    for index, clause in enumerate(clauses):
        kind, key, is_descending = _order(clause)
        if kind == "attribute":
            field = _RUN_ATTRIBUTES.get(key)
            if field is None:
                raise invalid(f"Invalid order_by key {key!r}; use one of {', '.join(sorted(_RUN_ATTRIBUTES))}")
        else:
            model: Any = {"metric": LatestMetric, "param": RunParameter, "tag": RunTag}.get(kind)
            if model is None:
                raise invalid(f"Invalid order_by entity {kind!r}; use metrics, params, tags or attributes")
            field = f"order_{index}"
            rows = model.objects.filter(tracked=OuterRef("pk"), key=key)
            runs = runs.annotate(**{field: Subquery(rows.values("value")[:1])})
            if kind == "metric":
                # NaN is stored as null: it comes after all numbers, and before runs without the metric.
                runs = runs.annotate(**{f"{field}_state": _metric_state(rows)})
                order.append(F(f"{field}_state").asc())
        order.append(F(field).desc(nulls_last=True) if is_descending else F(field).asc(nulls_last=True))
    return runs.order_by(*order, F("start_ms").desc(nulls_last=True), "uuid")


def _metric_state(rows: QuerySet[LatestMetric]) -> Case:
    """Return 0 for a number, 1 for NaN, 2 for no value."""
    is_number = When(Exists(rows.filter(value__isnull=False)), then=0)
    return Case(is_number, When(Exists(rows), then=1), default=2, output_field=IntegerField())


def _order(clause: Any) -> tuple[str, str, bool]:
    if not isinstance(clause, str) or len(clause) > 1_000:
        raise invalid(f"Invalid order_by clause {str(clause)[:80]!r}; expected a text like 'metrics.loss DESC'")
    text = clause.strip()
    match = re.fullmatch(r"(.+?)(?:\s+(ASC|DESC))?", text, re.IGNORECASE)
    if match is None:
        raise invalid(f"Invalid order_by clause {clause!r}; expected a text like 'metrics.loss DESC'")
    tokens = list(_tokens(match[1]))
    if len(tokens) != 1:
        raise invalid(f"Invalid order_by clause {clause!r}; expected one key and ASC or DESC")
    return *_identifier(text, tokens[0]), (match[2] or "").upper() == "DESC"


def text_matches(term: Term, value: Any) -> bool:
    """Compare a value outside of the database with a term."""
    if term.operator in ("IN", "NOT IN"):
        return (value in term.value) == (term.operator == "IN")
    if term.operator in ("LIKE", "ILIKE"):
        flags = re.DOTALL | (re.IGNORECASE if term.operator == "ILIKE" else 0)
        return isinstance(value, str) and re.match(_pattern(str(term.value)), value, flags) is not None
    compare: dict[str, Callable[[Any, Any], bool]] = {
        "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
    }  # fmt: skip
    return compare[term.operator](value, term.value)


# --- experiments -----------------------------------------------------------------------------------------------------


def filtered_experiments(experiments: QuerySet[Experiment], text: str) -> QuerySet[Experiment]:
    """Keep the experiments that match every term of a filter."""
    for term in parse_filter(text):
        experiments = experiments.filter(_experiment_condition(term))
    return experiments


def _experiment_condition(term: Term) -> Combinable:
    if term.kind == "tag":
        rows = ExperimentLabel.objects.filter(experiment=OuterRef("pk"), key=term.key)
        if term.operator in ("IS NULL", "IS NOT NULL"):
            return Exists(rows) if term.operator == "IS NOT NULL" else ~Exists(rows)
        return Exists(rows.filter(_compare(term, "value")))
    field = _EXPERIMENT_ATTRIBUTES.get(term.key) if term.kind == "attribute" else None
    if field is None:
        raise invalid(f"Invalid attribute key {term.key!r}; use one of {', '.join(sorted(_EXPERIMENT_ATTRIBUTES))}")
    if field in _TIMES:
        from .entities import moment

        if term.operator not in _NUMBER or not isinstance(term.value, float):
            raise invalid(f"Invalid comparison of {term.key!r}: use {', '.join(sorted(_NUMBER))} with a number")
        return Q(**{f"{field}__{_LOOKUPS.get(term.operator, 'exact')}": moment(term.value)})
    return _compare(term, field)


def ordered_experiments(experiments: QuerySet[Experiment], clauses: Sequence[Any]) -> QuerySet[Experiment]:
    """Sort experiments by clauses like `name ASC`; the newest first by default."""
    order: list[OrderBy] = []
    for clause in clauses:
        kind, key, is_descending = _order(clause)
        field = _EXPERIMENT_ATTRIBUTES.get(key) if kind == "attribute" else None
        if field is None:
            raise invalid(f"Invalid order_by key {key!r}; use one of {', '.join(sorted(_EXPERIMENT_ATTRIBUTES))}")
        order.append(F(field).desc() if is_descending else F(field).asc())
    return experiments.order_by(*order, F("created_at").desc(), F("pk").desc())


def conditions_of(data: Mapping[str, Any], name: str = "filter") -> str:
    """Return the filter text of a request."""
    value = data.get(name) or ""
    if not isinstance(value, str):
        raise invalid(f"Invalid value for parameter '{name}': expected a string")
    return value
