"""The groups of the palette for a query, or without one what a person opened last and what the page can do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.contrib.auth.models import User
from django.urls import Resolver404, resolve, reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from parlab.charts.format import SPACE, quantity
from parlab.charts.measures import MEASURES
from parlab.lab.selectors import filters, palette
from parlab.lab.selectors.palette import LIMIT, MatchedExperiment, NamedRun
from parlab.pages.templatetags.frame import ENTRIES, SETTINGS, Entry
from parlab.pages.views.experiments.lists import counted
from runners.wire.protocol import RunState

from .actions import Asked, fitting_actions, plain_actions, worded_actions
from .rows import Group, Place, Row, marked

MOST_WORDS = 8
_FIELD_NAMES = {"oom": "OOM"}
_SORTED_BY = {"samples_per_s": "-samples_per_s", "tokens_per_s": "-tokens_per_s", "step_time": "step_time",
              "ms_per_sample": "ms_per_sample", "memory": "-memory", "mfu": "-mfu"}  # fmt: skip
"""Measure -> order of the list of runs, the best first."""


def place_of(path: str) -> Place:
    """Return the page at an address of this site."""
    try:
        match = resolve(path)
    except Resolver404:
        return Place()
    slug = match.kwargs.get("slug", "") if match.route.startswith("experiments/") else ""
    number = match.kwargs.get("number", 0) if "runs/<int:number>" in match.route else 0
    return Place(match.url_name or "", slug, number)


def groups(query: str, *, place: Place, user: User, picked: Sequence[int] = ()) -> list[Group]:
    """Return the groups that have rows, in the order of the list."""
    terms, words = filters.split(query)
    asked = Asked(query.split()[:MOST_WORDS], place, user, picked)
    if not asked.words:
        found = _without_query(asked)
    elif terms:
        found = _with_terms(query, asked)
    else:
        found = _with_words(words[:MOST_WORDS], asked)
    return [Group(title, rows) for title, rows in found if rows]


Found = Iterator[tuple[str, list[Row]]]


def _without_query(asked: Asked) -> Found:
    yield "Recent", [_experiment_row(entry, ()) for entry in palette.recent_experiments(user=asked.user)]
    yield "Actions", [*worded_actions(asked), *plain_actions(asked, most=8)]


def _with_words(words: Sequence[str], asked: Asked) -> Found:
    worded = worded_actions(asked)
    if worded:
        yield "Actions", worded
    runs = palette.matching_runs(words, user=asked.user, open_slug=asked.place.slug)
    experiments = palette.matching_experiments(words, user=asked.user)
    found = [
        ("Runs", [_run_row(run, words) for run in runs]),
        ("Experiments", [_experiment_row(entry, words) for entry in experiments]),
    ]
    yield from reversed(found) if _is_named(words, experiments) else found
    yield "Metrics", _metrics(words, asked.user)
    yield "Nodes", [_node_row(node.name, node.pool, words) for node in palette.matching_nodes(words)]
    pages = [row for entry in ENTRIES for row in _pages(entry, words, asked.user)]
    yield "Pages", pages[:LIMIT]
    yield "Settings", _pages(SETTINGS, words, asked.user)[:LIMIT]
    if all(row.is_message for row in worded):
        here = [named.run.pk for named in runs if named.run.experiment.slug == asked.place.slug]
        yield "Actions", [*fitting_actions(asked, here), *plain_actions(asked, most=LIMIT)][:LIMIT]
    yield "Filter", _filter_rows(words, asked.user)


def _is_named(words: Sequence[str], experiments: Sequence[MatchedExperiment]) -> bool:
    """Whether a name of an experiment begins with the words: its own runs then follow it."""
    text = " ".join(words).lower()
    return any(entry.experiment.name.lower().startswith(text) for entry in experiments)


def _with_terms(query: str, asked: Asked) -> Found:
    condition = filters.parse(query)
    suggestions = [_suggestion(query, text, note) for text, note in suggested(query)]
    if condition.problems:
        messages = [Row(marked(problem.message), icon="circle-alert") for problem in condition.problems]
        # While a value is typed, its suggestions say more than that it is incomplete.
        yield "Filter", suggestions or messages
        return
    count = palette.count_matches(condition, user=asked.user)
    yield "Filter", [_list_row(_described(query), query, count), *suggestions]
    yield "Runs", [_run_row(run, ()) for run in palette.filtered_runs(condition, user=asked.user)]


def _run_row(named: NamedRun, words: Sequence[str]) -> Row:
    run = named.run
    value, unit = (quantity(run.samples_per_s, "samples/s").rsplit(SPACE, 1) if run.samples_per_s
                   else (_FIELD_NAMES.get(run.state, run.state), ""))  # fmt: skip
    return Row(
        marked(named.name, words),
        run.get_absolute_url(),
        look=named.look,
        note=f"{run.experiment.name} #{run.number}",
        value=value,
        unit=unit,
        preview=reverse("palette-run", args=[run.pk]),
        run=run.pk,
    )


def _experiment_row(entry: MatchedExperiment, words: Sequence[str]) -> Row:
    experiment = entry.experiment
    preview = reverse("palette-experiment", args=[experiment.pk])
    title = marked(experiment.name, words)
    return Row(title, experiment.get_absolute_url(), "chart-line", note=counted(entry.runs, "run"), preview=preview)


def _node_row(name: str, pool: str, words: Sequence[str]) -> Row:
    return Row(marked(name, words), reverse("node", args=[name]), "server", note=f"pool {pool}")


def _pages(entry: Entry, words: Sequence[str], user: User) -> list[Row]:
    pages = [page for page in entry.pages if page.may_open(user)]
    return [
        Row(
            marked(page.title, words),
            reverse(page.url),
            entry.icon,
            note="" if page.title == entry.title else entry.title,
        )
        for page in pages
        if all(word.lower() in page.title.lower() for word in words)
    ]


def _metrics(words: Sequence[str], user: User) -> list[Row]:
    """Return measures, which lead to the runs in their order, and metrics of scripts, which lead to the newest run."""
    listed = f"{reverse('experiments')}?show=runs&sort="
    rows = [
        Row(marked(measure.title, words), f"{listed}{_SORTED_BY[name]}", "gauge", note=measure.unit)
        for name, measure in MEASURES.items()
        if name in _SORTED_BY and all(word.lower() in measure.title.lower() for word in words)
    ]
    for key, run in palette.matching_metrics(words, user=user):
        note = f"newest in {run.experiment.name} #{run.number}"
        rows.append(Row(marked(key, words), f"{run.get_absolute_url()}#curves", "activity", note=note))
    return rows[:LIMIT]


def _filter_rows(words: Sequence[str], user: User) -> list[Row]:
    """Return the lists of runs of which a word is a value, and fields that begin with the word."""
    if len(words) != 1:
        return []
    word = words[0]
    rows = [
        _list_row(marked(f"Runs with {fact.field} = {_FIELD_NAMES.get(fact.value, fact.value)}", [word]),
                  f"{fact.field}:{fact.value}", fact.runs)
        for fact in palette.facts_of(word, user=user)
    ]  # fmt: skip
    return [*rows, *(_suggestion(word, text, note) for text, note in suggested(word))][:LIMIT]


def _list_row(title: SafeString, query: str, count: int) -> Row:
    url = f"{reverse('experiments')}?{urlencode({'show': 'runs', 'q': query})}"
    return Row(title, url, "list-filter", note=counted(count, "run"), term=query)


def _described(query: str) -> SafeString:
    """Return a filter in words: Runs with state = OOM."""
    text = " and ".join(query.split())
    for state in RunState:
        text = text.replace(f"state:{state.value}", f"state = {_FIELD_NAMES.get(state.value, state.value)}")
    return marked(f"Runs with {text}")


def suggested(query: str) -> list[tuple[str, str]]:
    """Return how the last term of a query can go on, with what it means: fields, then values of a field."""
    last = query.rsplit(" ", 1)[-1]
    before = query[: len(query) - len(last)]
    field, colon, part = last.partition(":")
    known = {entry["name"]: entry for entry in filters.completions([])}
    if not colon:
        names = [name for name in known if last and name.startswith(last.lower())]
        return [(f"{before}{name}{known[name]['sign']}", known[name]["help"]) for name in names[:LIMIT]]
    values = known[field.lower()]["values"] if field.lower() in known else []
    fitting = [value for value in values if value.startswith(part.lower()) and value != part.lower()]
    return [(f"{before}{field}:{value}", "") for value in fitting[: LIMIT + 3]]


def _suggestion(query: str, text: str, note: str) -> Row:
    return Row(marked(text, [query]), "", "list-filter", note=note, term=text)
