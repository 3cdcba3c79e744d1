"""The input of the simulation for people and programs: milliseconds, Gbit/s, megabytes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from .bound import Bound, bound_of_any
from .calibration import WEIGHT_SHARE
from .choice import Choice, Outcome, Plan, Wire, best_schedule, on_wire, outcome
from .pipeline import MAX_MICRO_BATCHES, MAX_RANKS, Link, Pipeline, StageTimes

MAX_PLANS = 12
_PLAN = re.compile(r"(gpipe|1f1b|zb-h1|interleaved-1f1b)(?:-(\d{1,4}))?")
_MOST_MS = 600_000


def _as_list(value: Any) -> Any:
    """Convert a single number, or a text with numbers separated by commas or spaces, to a list."""
    if isinstance(value, str):
        return [part for part in re.split(r"[\s,;]+", value.strip()) if part]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else value


def _empty_as_none(value: Any) -> Any:
    """Convert an empty form field to None."""
    return None if isinstance(value, str) and not value.strip() else value


_Ms = Annotated[float, Field(ge=0, le=_MOST_MS, allow_inf_nan=False)]
_Gbps = Annotated[float, Field(ge=0.001, le=100_000, allow_inf_nan=False)]
_PerStage = Annotated[list[_Ms], Field(min_length=1, max_length=MAX_RANKS), BeforeValidator(_as_list)]
_Text = Annotated[str, Field(max_length=40)]


class Scenario(BaseModel):
    """A pipeline on a network, and the schedules to simulate on it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    stages: Annotated[int, Field(ge=1, le=MAX_RANKS)] = 3
    """Ranks of the pipeline."""
    micro_batches: Annotated[int, Field(ge=1, le=MAX_MICRO_BATCHES)] = 64
    """Micro batches of one iteration."""
    forward_ms: _PerStage = [25.0]
    """Forward pass of one micro batch through one stage: one number for all stages, or one for each."""
    backward_ms: _PerStage = [75.0]
    """Backward pass, including recomputation: one number for all stages, or one for each."""
    weight_ms: Annotated[_PerStage | None, BeforeValidator(_empty_as_none)] = None
    """Weight gradients in the backward pass, which zb-h1 defers; empty: half of the backward pass."""
    optimizer_ms: _Ms = 0.0
    """Optimizer step of every rank at the end of the iteration."""
    delay_ms: _PerStage = [10.0]
    """One-way delay of the outgoing link: one number for all ranks, or one for each."""
    bandwidth_gbps: Annotated[
        Annotated[list[_Gbps], Field(min_length=1, max_length=MAX_RANKS), BeforeValidator(_as_list)] | None,
        BeforeValidator(_empty_as_none),
    ] = [1.0]
    """Bandwidth of the outgoing link (Gbit/s), shared by activations and gradients; empty: no limit."""
    message_mb: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 6.291456
    """Activations of one micro batch between two stages (10^6 bytes); gradients have the same size."""
    number_bytes: Literal[2, 4] = 4
    """Bytes per computed value."""
    wire: Wire = "same"
    """Precision of messages: the same as computed, 16 bits, or 8."""
    sends_block: bool = False
    """The computing thread waits until a message has left."""
    receives_ahead: bool = True
    """Receives are posted ahead, so that a message may arrive before its receiver needs it."""
    schedules: Annotated[list[_Text], Field(min_length=1, max_length=MAX_PLANS), BeforeValidator(_as_list)] = [
        "gpipe",
        "1f1b",
        "best",
    ]
    """gpipe, 1f1b, 1f1b-3 (warm-up slope 3), interleaved-1f1b-2 (2 chunks), zb-h1, or best (the best slope)."""

    @model_validator(mode="before")
    @classmethod
    def _number_bytes_as_number(cls, data: Any) -> Any:
        text = data.get("number_bytes") if isinstance(data, dict) else None
        return {**data, "number_bytes": int(text)} if isinstance(text, str) and text in ("2", "4") else data

    @model_validator(mode="after")
    def _fits_together(self) -> Scenario:
        for name in ("forward_ms", "backward_ms", "weight_ms", "delay_ms", "bandwidth_gbps"):
            count = len(getattr(self, name) or [0])
            if count not in (1, self.stages):
                raise ValueError(f"{name} has {count} numbers for {self.stages} stages; give one, or {self.stages}")
        for stage in range(self.stages if self.weight_ms else 0):
            weight, backward = _at(self.weight_ms or [], stage), _at(self.backward_ms, stage)
            if weight > backward:
                raise ValueError(f"weight_ms {weight:g} is more than backward_ms {backward:g}; use at most that")
        for text in self.schedules:
            if text != "best":
                plan_of(text)
        return self

    def pipeline(self) -> Pipeline:
        """Return the pipeline in SI units, with messages in the precision of `wire`."""
        ranks = range(self.stages)
        backward = [_at(self.backward_ms, i) for i in ranks]
        weight = [_at(self.weight_ms, i) if self.weight_ms else WEIGHT_SHARE * backward[i] for i in ranks]
        rates = [_at(self.bandwidth_gbps, i) * 1e9 if self.bandwidth_gbps else math.inf for i in ranks]
        plain = Pipeline(
            stages=tuple(StageTimes(_at(self.forward_ms, i) / 1e3, backward[i] / 1e3, weight[i] / 1e3) for i in ranks),
            num_micro_batches=self.micro_batches,
            links=tuple(Link(_at(self.delay_ms, i) / 1e3, rates[i]) for i in ranks),
            forward_bytes=self.message_mb * 1e6,
            backward_bytes=self.message_mb * 1e6,
            step_s=self.optimizer_ms / 1e3,
            sends_block=self.sends_block,
            receives_ahead=self.receives_ahead,
        )
        return on_wire(plain, self.wire, self.number_bytes)


def _at(values: Sequence[float], place: int) -> float:
    return values[place] if len(values) > 1 else values[0]


def plan_of(text: str) -> Plan:
    """Parse a schedule with its option: 1f1b-3 has slope 3, interleaved-1f1b-2 has two chunks.

    Raises ValueError for an unknown schedule or option.
    """
    match = _PLAN.fullmatch(text.strip())
    if match is None or (match[2] and match[1] in ("gpipe", "zb-h1")) or (match[2] and int(match[2]) < 1):
        raise ValueError(
            f"schedules: unknown schedule {text[:40]!r}; use gpipe, 1f1b, 1f1b-3 (warm-up slope), interleaved-1f1b-2"
            " (chunks), zb-h1 or best"
        )
    option = int(match[2] or 0)
    if match[1] == "1f1b":
        return Plan("1f1b", warmup_slope=option or 1)
    return Plan(match[1], virtual_stages=(option or 2) if match[1] == "interleaved-1f1b" else 1)


def code_of(plan: Plan) -> str:
    """Format a schedule in the notation of `plan_of`."""
    option = plan.warmup_slope if plan.name == "1f1b" else plan.virtual_stages
    return f"{plan.name}-{option}" if option > 1 else plan.name


class Refusal(NamedTuple):
    """A problem with one field or one schedule of a scenario."""

    field: str
    value: str
    message: str


class Answer(NamedTuple):
    """The simulated schedules of a scenario."""

    outcomes: list[Outcome]
    """In the order of `schedules`, with the chosen schedule in place of `best`."""
    choice: Choice | None
    """The choice, if `schedules` contains `best`."""
    refused: list[Refusal]
    """Schedules that do not support these sizes."""
    bound: Bound | None = None
    """Lower bound of all schedules with these numbers of chunks; None without an outcome."""


def answer(scenario: Scenario) -> Answer:
    """Simulate every schedule of a scenario, each once."""
    pipeline, choice = scenario.pipeline(), None
    outcomes: dict[Plan, Outcome] = {}
    refused = []
    for text in scenario.schedules:
        try:
            if text == "best":
                choice = best_schedule(pipeline)
                simulated = choice.best._replace(wire=scenario.wire)
            else:
                simulated = outcome(plan_of(text), pipeline, scenario.wire)
        except ValueError as error:
            refused.append(Refusal("schedules", text, str(error)))
        else:
            outcomes.setdefault(simulated.plan, simulated)
    chunks = sorted({plan.virtual_stages for plan in outcomes})
    bound = bound_of_any(pipeline, chunks) if chunks else None
    return Answer(list(outcomes.values()), choice, refused, bound)


def refusals(error: ValidationError) -> list[Refusal]:
    """Return the problems of a scenario, one per field."""
    problems = []
    for detail in error.errors():
        field = str(detail["loc"][0]) if detail["loc"] else ""
        value = detail["input"]
        text = "" if isinstance(value, dict) or value == [] else str(value)[:60]
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            message = f"unknown field {field[:60]}; use one of {', '.join(Scenario.model_fields)}"
        elif field:
            message = f"{field} {text or '(empty)'} is invalid: {message[:1].lower()}{message[1:]}"
        else:
            field = message.split(" ")[0].rstrip(":")
        problems.append(Refusal(field, text, message))
    return problems
