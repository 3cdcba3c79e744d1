"""Simulation of pipeline schedules on a network, with the values of a form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.utils.http import urlencode
from django.views.decorators.http import require_GET
from pydantic import ValidationError

from parlab.charts import theme
from parlab.charts.fields import SCHEDULES
from parlab.charts.format import for_column, unit_for
from parlab.charts.runs import timeline
from parlab.charts.runs.timeline import Timeline
from parlab.charts.sweeps.schedule_bars import ScheduleBar, schedule_bars
from parlab.charts.theme import Drawing
from parlab.pages.forms.plan_query import read_plan
from parlab.pages.reads.planning.carried import carried_plan, simulated_query
from parlab.pages.reads.planning.simulated_timelines import simulated_timeline
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
_LONGEST_PLAN = 4_000
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


def _scenario_of_plan(query: QueryDict) -> str:
    """Return the query of this page for the pipeline of a plan, if the address states a plan and no scenario."""
    plan = query.get("plan", "")
    if not plan or Scenario.model_fields.keys() & query.keys():
        return ""
    predicted = read_plan(QueryDict(plan[:_LONGEST_PLAN])).outline
    scenario = simulated_query(predicted.prediction) if predicted else ""
    return f"{scenario}&{urlencode({'plan': plan})}" if scenario else ""


@require_GET
def simulate(request: HttpRequest) -> HttpResponse:
    if scenario := _scenario_of_plan(request.GET):
        return redirect(f"{reverse('simulate')}?{scenario}")
    question = read_question(request.GET)
    result = answer(question.scenario) if question.scenario else None
    template = "pages/plan/simulate_answer.html" if is_partial(request) else "pages/plan/simulate.html"
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
        "plan": request.GET.get("plan", "")[:_LONGEST_PLAN],
        "carried": carried_plan(request.GET.get("plan", "")),
        "fields": question.fields,
        "presets": [(code, title, code in question.schedules) for code, title in PRESETS],
        "more": " ".join(code for code in question.schedules if code not in dict(PRESETS)),
        "wires": WIRES,
        "refusals": [*question.refusals, *(result.refused if result else [])],
        "outcomes": [(code_of(outcome.plan), outcome) for outcome in outcomes],
        **_pictured(request.GET, result, [above, below]),
        "choice": result.choice if result else None,
        "time": for_column(unit_for(times, "s"), ((time, False) for time in times)),
        "fastest": min(times, default=None),
        "above": code_of(above.plan) if above else "",
        "below": code_of(below.plan) if below else "",
        "address": query,
        "lanes": question.scenario.stages * (2 if below else 1) if question.scenario else 0,
        "drawn_from": digest(query)[:16],
    }


def _pictured(query: QueryDict, result: Answer | None, drawn: Sequence[Outcome | None]) -> dict[str, Any]:
    """Return the bars of the schedules, and how close the fastest comes to the bound of all."""
    if result is None or result.bound is None:
        return {}
    recommended = result.choice.best.plan if result.choice else None
    unit = unit_for([outcome.simulation.iteration_s for outcome in result.outcomes], "s")
    bars = [
        ScheduleBar(
            outcome.plan.title,
            outcome.simulation.iteration_s,
            outcome.simulation.bubble_fraction,
            f"?{_with_two(query, code_of(outcome.plan))}#timeline-title",
            outcome.plan == recommended,
            outcome in drawn,
        )
        for outcome in result.outcomes
    ]
    first = min(result.outcomes, key=lambda outcome: outcome.simulation.iteration_s)
    excess = first.simulation.iteration_s / result.bound.seconds - 1 if result.bound.seconds else 0.0
    return {
        "bars": schedule_bars(bars, result.bound.seconds, unit),
        "bound": result.bound,
        "first": first,
        "excess": max(0.0, excess),
    }


def _with_two(query: QueryDict, code: str) -> str:
    """Return the query with another schedule as the lower of the two that are drawn."""
    changed = query.copy()
    changed["two"] = code
    return changed.urlencode()


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
