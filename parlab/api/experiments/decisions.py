"""What people decide about results: findings that are acceptable, and what reported names mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import permissions
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem, refused
from parlab.api.permissions import user_with
from parlab.api.serializers import Errors, FindingItem
from parlab.formats.grammar.names import SETTINGS
from parlab.formats.grammar.quantities import CHOICES
from parlab.lab.models import Experiment, Finding, NameMeaning
from parlab.lab.services.findings import finding_acknowledge, finding_reopen
from parlab.tracking.meanings import NameRow, meanings_set, metric_rows, setting_rows

_KINDS = {"metrics": NameMeaning.Kind.METRIC, "settings": NameMeaning.Kind.SETTING}


class AcknowledgeRequest(drf.Serializer[Any]):
    reason = drf.CharField(max_length=2_000, help_text="Why the finding is acceptable.")


class NameItem(drf.Serializer[Any]):
    """A name that reported runs use."""

    name = drf.CharField()
    runs = drf.IntegerField(help_text="Number of runs with this name.")
    guess = drf.CharField(help_text="What the name means by itself; empty: nothing.")
    chosen = drf.CharField(allow_null=True, help_text="What a person has chosen; empty: nothing, null: the guess.")


class NamesItem(drf.Serializer[Any]):
    """What the metrics and parameters of an experiment's reported runs mean."""

    metrics = NameItem(many=True)
    settings = NameItem(many=True)
    quantities = drf.DictField(child=drf.CharField(), help_text="Meaning of a metric -> its title with unit.")
    fields = drf.ListField(child=drf.CharField(), help_text="Meanings of a parameter.")  # type: ignore[assignment]  # the field has the name of a property


class NamesRequest(drf.Serializer[Any]):
    """Meanings to change; names that are left out keep theirs."""

    metrics = drf.DictField(
        child=drf.CharField(allow_blank=True, allow_null=True),
        required=False,
        help_text="Metric -> meaning; empty: none, null: back to the guess.",
    )
    settings = drf.DictField(
        child=drf.CharField(allow_blank=True, allow_null=True), required=False, help_text="Parameter -> field."
    )


class Acknowledgement(APIView):
    """PUT acknowledges a finding, DELETE reopens it."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(
        operation_id="findings_acknowledge", request=AcknowledgeRequest, responses={200: FindingItem, 400: Errors}
    )
    def put(self, request: Request, pk: int) -> Response:
        user = user_with("lab.change_finding", request)
        asked = AcknowledgeRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        reason = asked.validated_data["reason"]
        with refused("reason", reason):
            finding_acknowledge(finding=_finding(pk), user=user, reason=reason)
        return Response(FindingItem(_finding(pk)).data)

    @extend_schema(operation_id="findings_reopen", responses={200: FindingItem})
    def delete(self, request: Request, pk: int) -> Response:
        user_with("lab.change_finding", request)
        finding_reopen(finding=_finding(pk))
        return Response(FindingItem(_finding(pk)).data)


def _finding(pk: int) -> Finding:
    return get_object_or_404(Finding.objects.select_related("experiment", "run", "acknowledged_by"), pk=pk)


class Names(APIView):
    """The names of an experiment's reported runs; PATCH chooses what some of them mean."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="names_read", responses={200: NamesItem})
    def get(self, _request: Request, slug: str) -> Response:
        return Response(_names(get_object_or_404(Experiment, slug=slug)))

    @extend_schema(
        operation_id="names_change",
        request=NamesRequest,
        responses={200: NamesItem, 400: Errors},
        description="Configurations, summaries and findings of the experiment's reported runs are computed again.",
    )
    def patch(self, request: Request, slug: str) -> Response:
        user_with("lab.change_experiment", request)
        experiment = get_object_or_404(Experiment, slug=slug)
        asked = NamesRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        for field, kind in _KINDS.items():
            changes: Mapping[str, str | None] = asked.validated_data.get(field) or {}
            if changes:
                _choose(experiment, field, kind, changes)
        return Response(_names(experiment))


def _choose(experiment: Experiment, field: str, kind: NameMeaning.Kind, changes: Mapping[str, str | None]) -> None:
    rows = {row.name: row for row in _rows(experiment, kind)}
    for name in changes:
        if name not in rows:
            remedy = f"use a name that GET /api/experiments/{experiment.slug}/names/ lists"
            raise Problem(f"no reported run has the name {name[:80]!r}", field=field, value=name, remedy=remedy)
    chosen = {**{name: row.chosen for name, row in rows.items()}, **changes}
    with refused(field, changes):
        meanings = {name: meaning for name, meaning in chosen.items() if meaning is not None}
        meanings_set(experiment=experiment, kind=kind, meanings=meanings)


def _rows(experiment: Experiment, kind: NameMeaning.Kind) -> list[NameRow]:
    return metric_rows(experiment) if kind == NameMeaning.Kind.METRIC else setting_rows(experiment)


def _names(experiment: Experiment) -> dict[str, Any]:
    rows = {field: [row._asdict() for row in _rows(experiment, kind)] for field, kind in _KINDS.items()}
    return {**rows, "quantities": {key: choice.title for key, choice in CHOICES.items()}, "fields": list(SETTINGS)}
