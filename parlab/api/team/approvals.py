"""Launches beyond the budget of a project: what waits, and what a maintainer decides."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import permissions
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import refused
from parlab.api.serializers import Errors
from parlab.fleet.approvals import approve
from parlab.lab.models import LaunchApproval


class ApprovalItem(drf.ModelSerializer[LaunchApproval]):
    """Runs that wait for a maintainer, or what was decided."""

    experiment = drf.CharField(source="experiment.slug")
    name = drf.CharField(source="experiment.name", help_text="Of the experiment.")
    asked_by = drf.CharField(source="asked_by.username")
    runs = drf.SerializerMethodField(help_text="Numbers of the runs.")

    class Meta:
        model = LaunchApproval
        fields = ["id", "experiment", "name", "asked_by", "asked_at", "gpu_hours", "budget", "runs", "is_approved"]

    def get_runs(self, approval: LaunchApproval) -> list[int]:
        return sorted(approval.runs.values_list("number", flat=True))


class DecisionRequest(drf.Serializer[Any]):
    is_approved = drf.BooleanField(help_text="false cancels the runs.")


class Approvals(APIView):
    """The launches that wait for a maintainer, newest first."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="approvals_list", responses={200: ApprovalItem(many=True)})
    def get(self, _request: Request) -> Response:
        waiting = LaunchApproval.objects.filter(is_approved=None).select_related("experiment", "asked_by")
        return Response(ApprovalItem(waiting[:200], many=True).data)


class OneApproval(APIView):
    """One launch; POST approves or refuses it: people who maintain the project."""

    token_scope = "admin"
    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="approvals_read", responses={200: ApprovalItem})
    def get(self, _request: Request, pk: int) -> Response:
        return Response(ApprovalItem(get_object_or_404(LaunchApproval, pk=pk)).data)

    @extend_schema(operation_id="approvals_decide", request=DecisionRequest, responses={200: ApprovalItem, 400: Errors})
    def post(self, request: Request, pk: int) -> Response:
        approval = get_object_or_404(LaunchApproval, pk=pk)
        asked = DecisionRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        is_approved = asked.validated_data["is_approved"]
        with refused("is_approved", is_approved):
            approve(approval=approval, user=cast(User, request.user), is_approved=is_approved)
        approval.refresh_from_db()
        return Response(ApprovalItem(approval).data)
