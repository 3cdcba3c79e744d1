"""Simulation of pipeline schedules on a network values in a form."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_GET
from pydantic import ValidationError

from parlab.charts import theme
from parlab.charts.fields import SCHEDULES
from parlab.charts.format import for_column, unit_for
from parlab.charts.runs import timeline
from parlab.charts.runs.timeline import Timeline
from parlab.charts.theme import Drawing
from parlab.pages.reads.simulated_timelines import simulated_timeline
from parlab.pages.views.experiments.figures import csv_response, json_response
from parlab.pages.views.partial import is_partial
from parlab.planner.schedule import Answer, Outcome, Refusal, Scenario, answer, code_of, refusals
from runners.config import digest

PRESETS = [
    ("gpipe", SCHEDULES["gpipe"]),
    ("1f1b", SCHEDULES["1f1b"]),
    ("best", f"{SCHEDULES['1f1b']}, recommended slope"),
    ("interleaved-1f1b-2", f"{SCHEDULES['interleaved-1f1b']}, 2 chunks"),
    ("zb-h1", SCHEDULES["zb-h1"]),
]
WIRES = [("same", "as computed"), ("bf16", "16 bits (bf16)"), ("fp16", "16 bits (fp16)"), ("int8", "8 bits")]
_SWITCHES = {"sends": ("sends_block", "block", True), "receives": ("receives_ahead", "late", False)}
_LONGEST = 2_000
"""Maximum number of characters of a field."""


class SimulationQuery(NamedTuple):
    """The question of a URL: the scenario, or its errors."""

    fields: dict[str, str]
    """Every field of the form as text."""
    schedules: list[str]
    scenario: Scenario | None
    refusals: list[Refusal]


def read_question(query: QueryDict) -> SimulationQuery:
    """Read the scenario of a URL; missing fields have their defaults."""
    typed: dict[str, Any] = {name: query.get(name, "") for name in Scenario.model_fields if name in query}
    values = {
        name: text[:_LONGEST]
        for name, text in typed.items()
        if text.strip() or name in ("weight_ms", "bandwidth_gbps")  # only these may be left empty
    }
    for name, (field, value, setting) in _SWITCHES.items():
        values.pop(field, None)
        if query.get(name) == value:
            values[field] = setting
    schedules = [code for text in query.getlist("schedules") for code in text[:_LONGEST].split()]
    schedules += query.get("more", "")[:_LONGEST].replace(",", " ").split()
    values.pop("schedules", None)
    if schedules:
        values["schedules"] = list(dict.fromkeys(schedules))
    try:
        scenario, errors = Scenario.model_validate(values), []
    except ValidationError as error:
        scenario, errors = None, refusals(error)
    schedules = scenario.schedules if scenario else values.get("schedules", [])
    return SimulationQuery(_texts(query, values), schedules, scenario, errors)


def _texts(query: QueryDict, values: dict[str, Any]) -> dict[str, str]:
    """Return the texts of the form fields: as typed, else their defaults."""
    texts = {name: _field_text(values.get(name, field.default)) for name, field in Scenario.model_fields.items()}
    return texts | {name: query.get(name, "")[:40] for name in ("sends", "receives", "one", "two")}


def _field_text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_field_text(item) for item in value)
    return "" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)


@require_GET
def simulate(request: HttpRequest) -> HttpResponse:
    question = read_question(request.GET)
    result = answer(question.scenario) if question.scenario else None
    template = "pages/simulate_answer.html" if is_partial(request) else "pages/simulate.html"
    response = render(request, template, _context(request, question, result))
    patch_vary_headers(response, ["HX-Request"])
    return response


def _context(request: HttpRequest, question: SimulationQuery, result: Answer | None) -> dict[str, Any]:
    query = request.GET.urlencode()
    outcomes = result.outcomes if result else []
    above, below = _chosen(question, outcomes)
    times = [outcome.simulation.iteration_s for outcome in outcomes]
    return {
        "section": "simulate",
        "fields": question.fields,
        "presets": [(code, title, code in question.schedules) for code, title in PRESETS],
        "more": " ".join(code for code in question.schedules if code not in dict(PRESETS)),
        "wires": WIRES,
        "refusals": [*question.refusals, *(result.refused if result else [])],
        "outcomes": [(code_of(outcome.plan), outcome) for outcome in outcomes],
        "choice": result.choice if result else None,
        "time": for_column(unit_for(times, "s"), ((time, False) for time in times)),
        "fastest": min(times, default=None),
        "above": code_of(above.plan) if above else "",
        "below": code_of(below.plan) if below else "",
        "address": query,
        "lanes": question.scenario.stages * (2 if below else 1) if question.scenario else 0,
        "drawn_from": digest(query)[:16],
    }


def _chosen(question: SimulationQuery, outcomes: list[Outcome]) -> tuple[Outcome | None, Outcome | None]:
    """Return the schedules to draw above and below: those in the URL, else the last ones."""
    by_code = {code_of(outcome.plan): outcome for outcome in outcomes}
    above, below = (by_code.get(question.fields[name]) for name in ("one", "two"))
    if below is None or below is above:
        below = next((outcome for outcome in reversed(outcomes) if outcome is not above), None)
    if above is None:
        above = next((outcome for outcome in reversed(outcomes) if outcome is not below), None)
    return (above, below) if above else (below, None)


def simulated_by(query: QueryDict) -> Timeline:
    """Simulate the lower of the schedules that a URL of the page draws. Raises ValueError."""
    question = read_question(query)
    if question.scenario is None:
        raise ValueError(question.refusals[0].message)
    result = answer(question.scenario)
    above, below = _chosen(question, result.outcomes)
    chosen = below or above
    if chosen is None:
        raise ValueError(result.refused[0].message)
    return simulated_timeline(chosen, title=f"{chosen.plan.title}, simulated")


def _drawing(request: HttpRequest) -> Drawing:
    question = read_question(request.GET)
    if question.scenario is None:
        return theme.nothing(question.refusals[0].message)
    result = answer(question.scenario)
    chosen = [outcome for outcome in _chosen(question, result.outcomes) if outcome]
    if not chosen:
        return theme.nothing(result.refused[0].message if result.refused else "No schedule selected.")
    return timeline.figure([simulated_timeline(outcome) for outcome in chosen])


@require_GET
def timeline_json(request: HttpRequest) -> HttpResponse:
    return json_response(_drawing(request))


@require_GET
def timeline_csv(request: HttpRequest) -> HttpResponse:
    return csv_response(_drawing(request).table, "simulated-timeline.csv")
