"""Schedules on a network that nobody needs to own: typed in, simulated, side by side."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_GET
from pydantic import ValidationError

from parlab.charts import theme, timeline
from parlab.charts.format import unit_for
from parlab.charts.theme import Drawing
from parlab.charts.timeline import Timeline
from parlab.pages.simulated_timelines import simulated_timeline
from parlab.planner.schedule import Answer, Outcome, Refusal, Scenario, answer, code_of, refusals
from runners.config import digest

from .figures import csv_response, json_response
from .partial import is_partial

PRESETS = [
    ("gpipe", "GPipe"),
    ("1f1b", "1F1B"),
    ("best", "1F1B, the slope that suits"),
    ("interleaved-1f1b-2", "Interleaved 1F1B, 2 chunks"),
    ("zb-h1", "Zero bubble H1"),
]
WIRES = [("same", "as computed"), ("bf16", "16 bits (bf16)"), ("fp16", "16 bits (fp16)"), ("int8", "8 bits")]
_SWITCHES = {"sends": ("sends_block", "block", True), "receives": ("receives_ahead", "late", False)}
_LONGEST = 2_000
"""Characters of a field that anybody types."""


class Asked(NamedTuple):
    """A question as it came with an address: the scenario, or why there is none."""

    fields: dict[str, str]
    """Every field of the form as text."""
    schedules: list[str]
    scenario: Scenario | None
    refused: list[Refusal]


def read_question(query: QueryDict) -> Asked:
    """Read the scenario of an address; without any field it is the default one."""
    typed: dict[str, Any] = {name: query.get(name, "") for name in Scenario.model_fields if name in query}
    given = {
        name: text[:_LONGEST]
        for name, text in typed.items()
        if text.strip() or name in ("weight_ms", "bandwidth_gbps")  # only these may be left empty
    }
    for name, (field, value, means) in _SWITCHES.items():
        given.pop(field, None)
        if query.get(name) == value:
            given[field] = means
    schedules = [code for text in query.getlist("schedules") for code in text[:_LONGEST].split()]
    schedules += query.get("more", "")[:_LONGEST].replace(",", " ").split()
    given.pop("schedules", None)
    if schedules:
        given["schedules"] = list(dict.fromkeys(schedules))
    try:
        scenario, refused = Scenario.model_validate(given), []
    except ValidationError as error:
        scenario, refused = None, refusals(error)
    shown = scenario.schedules if scenario else given.get("schedules", [])
    return Asked(_texts(query, given), shown, scenario, refused)


def _texts(query: QueryDict, given: dict[str, Any]) -> dict[str, str]:
    """Write the fields as the form shows them: as typed, else their defaults."""
    texts = {name: _text(given.get(name, field.default)) for name, field in Scenario.model_fields.items()}
    return texts | {name: query.get(name, "")[:40] for name in ("sends", "receives", "one", "two")}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_text(one) for one in value)
    return "" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)


@require_GET
def simulate(request: HttpRequest) -> HttpResponse:
    asked = read_question(request.GET)
    found = answer(asked.scenario) if asked.scenario else None
    template = "pages/simulate_answer.html" if is_partial(request) else "pages/simulate.html"
    response = render(request, template, _context(request, asked, found))
    patch_vary_headers(response, ["HX-Request"])
    return response


def _context(request: HttpRequest, asked: Asked, found: Answer | None) -> dict[str, Any]:
    query = request.GET.urlencode()
    outcomes = found.outcomes if found else []
    above, below = _chosen(asked, outcomes)
    return {
        "section": "simulate",
        "fields": asked.fields,
        "presets": [(code, title, code in asked.schedules) for code, title in PRESETS],
        "more": " ".join(code for code in asked.schedules if code not in dict(PRESETS)),
        "wires": WIRES,
        "refusals": [*asked.refused, *(found.refused if found else [])],
        "outcomes": [(code_of(outcome.plan), outcome) for outcome in outcomes],
        "choice": found.choice if found else None,
        "time": unit_for([outcome.simulation.iteration_s for outcome in outcomes], "s"),
        "fastest": min((outcome.simulation.iteration_s for outcome in outcomes), default=None),
        "above": code_of(above.plan) if above else "",
        "below": code_of(below.plan) if below else "",
        "address": query,
        "lanes": asked.scenario.stages * (2 if below else 1) if asked.scenario else 0,
        "drawn_from": digest(query)[:16],
    }


def _chosen(asked: Asked, outcomes: list[Outcome]) -> tuple[Outcome | None, Outcome | None]:
    """Find the schedules to draw above and below: those asked for, else the last ones of the question."""
    by_code = {code_of(outcome.plan): outcome for outcome in outcomes}
    above, below = (by_code.get(asked.fields[name]) for name in ("one", "two"))
    if below is None or below is above:
        below = next((outcome for outcome in reversed(outcomes) if outcome is not above), None)
    if above is None:
        above = next((outcome for outcome in reversed(outcomes) if outcome is not below), None)
    return (above, below) if above else (below, None)


def simulated_by(query: QueryDict) -> Timeline:
    """Simulate the lower one of the schedules that an address of the page draws; raises ValueError."""
    asked = read_question(query)
    if asked.scenario is None:
        raise ValueError(asked.refused[0].message)
    found = answer(asked.scenario)
    above, below = _chosen(asked, found.outcomes)
    chosen = below or above
    if chosen is None:
        raise ValueError(found.refused[0].message)
    return simulated_timeline(chosen, title=f"{chosen.plan.title}, simulated")


def _drawing(request: HttpRequest) -> Drawing:
    asked = read_question(request.GET)
    if asked.scenario is None:
        return theme.nothing(asked.refused[0].message)
    found = answer(asked.scenario)
    chosen = [outcome for outcome in _chosen(asked, found.outcomes) if outcome]
    if not chosen:
        return theme.nothing(found.refused[0].message if found.refused else "No schedule is chosen.")
    return timeline.figure([simulated_timeline(outcome) for outcome in chosen])


@require_GET
def timeline_json(request: HttpRequest) -> HttpResponse:
    return json_response(_drawing(request))


@require_GET
def timeline_csv(request: HttpRequest) -> HttpResponse:
    return csv_response(_drawing(request).table, "simulated-timeline.csv")
