"""The planning question of a URL, with the prediction of its layout or its errors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from django.http import HttpRequest, QueryDict
from django.utils.http import urlencode
from pydantic import ValidationError

from parlab.lab.selectors.analysis.plans import (
    CalibrationGroup,
    calibration_of,
    calibration_pool,
    device_of,
    plan_context,
    priced,
)
from parlab.planner import Calibration
from parlab.planner.job.hardware import Gpu
from parlab.planner.job.prices import Price
from parlab.planner.requests.answer import Outline, Sizing, outline, sizing
from parlab.planner.requests.refusals import Refusal, refusals
from parlab.planner.requests.request import PlanRequest
from parlab.planner.search.layouts import Search, search

LONGEST = 200
"""Characters of a field that are read."""


class PlanQuery(NamedTuple):
    """The question of a URL, with the prediction of its layout or its errors."""

    fields: dict[str, str]
    question: PlanRequest | None
    outline: Outline | None
    refusals: list[Refusal]
    warning: str = ""
    """Why the selected calibration may not fit the device."""
    gpu: Gpu | None = None
    calibration: Calibration | None = None
    price: Price | None = None
    """The price of the device, if the question states none."""

    @property
    def currency(self) -> str:
        """The currency of the price of the device; USD where the question states a price."""
        return self.price.currency if self.price else "USD"

    @property
    def refusal(self) -> str:
        """Why there is no answer."""
        return self.refusals[0].message if self.refusals else "The question has errors."

    def sizing(self) -> Sizing | None:
        """Return layouts and numbers of nodes, searched once; None if the question has errors."""
        if self.outline is None or self.question is None or self.gpu is None:
            return None
        return _sizing(self.question, self.gpu, self.calibration)

    def search(self) -> Search:
        """Return the layouts on the GPUs of the question, searched once. Raises ValueError if it has errors."""
        if self.question is None or self.gpu is None:
            raise ValueError(self.refusals[0].message if self.refusals else "the question has errors")
        return _search(self.question, self.gpu, self.calibration)


def query_of(fields: Mapping[str, Any]) -> str:
    """Return fields as the query of a URL; empty ones that differ from their default are left out as well."""
    return urlencode({name: text for name, value in fields.items() if (text := _field_text(value))})


def read_question(request: HttpRequest, *, is_strict: bool = False) -> PlanQuery:
    """Read and answer the question of a URL; missing fields have their defaults, unknown ones are refused if strict."""
    return read_plan(request.GET, is_strict=is_strict)


def read_plan(query: QueryDict, *, is_strict: bool = False) -> PlanQuery:
    """Read and answer the question of a query."""
    unknown = query.keys() - PlanRequest.model_fields.keys() - {"calibration", "versus"} if is_strict else set()
    typed: dict[str, Any] = {
        name: query[name][:LONGEST]
        for name in [*PlanRequest.model_fields, *sorted(unknown)]
        if query.get(name, "").strip()
    }
    texts = {name: _field_text(typed.get(name, field.default)) for name, field in PlanRequest.model_fields.items()}
    texts["calibration"] = query.get("calibration", "")[:LONGEST]
    try:
        question = PlanRequest.model_validate(typed, context=plan_context())
    except ValidationError as error:
        return PlanQuery(texts, None, None, refusals(error))
    gpu = device_of(question)
    texts |= {name: _field_text(value) for name, value in question.model_dump().items()}
    try:
        group = _group(texts["calibration"])
        calibration = calibration_of(group, gpu) if group else None
        question, price = priced(question)
        first = outline(question, gpu, calibration)
        warning = _calibration_warning(group, gpu.name)
        return PlanQuery(texts, question, first, [], warning, gpu, calibration, price)
    except ValueError as error:
        return PlanQuery(texts, question, None, [Refusal(str(error).split(" ")[0], "", str(error))])


@lru_cache(maxsize=64)
def _sizing(question: PlanRequest, gpu: Gpu, calibration: Calibration | None) -> Sizing:
    return sizing(question, gpu, calibration)


@lru_cache(maxsize=64)
def _search(question: PlanRequest, gpu: Gpu, calibration: Calibration | None) -> Search:
    return search(question.job(), question.cluster(gpu), calibration, question.overlap)


def _group(key: str) -> CalibrationGroup | None:
    if not key:
        return None
    for group in calibration_pool().groups:
        if group.key == key:
            return group
    raise ValueError(f"calibration {key!r} no longer exists; select another calibration or none")


def _calibration_warning(group: CalibrationGroup | None, device: str) -> str:
    if group is None or group.device == device:
        return ""
    if not group.device:
        return f"The calibration files do not name a GPU; {device} is assumed."
    return f"Calibrated on {group.device} but planned for {device}: the prediction may be far off."


def _field_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
