"""Public links to experiments, runs and dashboards."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.shortcuts import get_object_or_404
from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import refused
from parlab.api.permissions import user_with
from parlab.api.serializers import Errors
from parlab.lab.models import Dashboard, Experiment, ReportLink, Run
from parlab.lab.selectors.projects import seen_links
from parlab.lab.services.public_links import Subject, link_create, link_revoke, may_revoke


class PublicLinkRequest(drf.Serializer[Any]):
    """What to share: an experiment, a run of it, or a dashboard."""

    experiment = drf.SlugField(required=False, help_text="Slug.")
    run = drf.IntegerField(required=False, help_text="Number of a run of the experiment.")
    dashboard = drf.IntegerField(required=False, help_text="ID.")


class PublicLinkItem(drf.Serializer[Any]):
    """A link in force."""

    id = drf.IntegerField()
    shows = drf.CharField(source="subject")
    url = drf.SerializerMethodField()
    created_by = drf.CharField(source="created_by.username")
    created_at = drf.DateTimeField()

    def get_url(self, link: ReportLink) -> str:
        address = reverse("shared", args=[link.token])
        request: Request = self.context["request"]
        return str(request.build_absolute_uri(address))


def _subject(options: dict[str, Any]) -> Subject:
    if "dashboard" in options:
        return get_object_or_404(Dashboard, pk=options["dashboard"])
    if "run" in options:
        return get_object_or_404(Run, experiment__slug=options.get("experiment", ""), number=options["run"])
    return get_object_or_404(Experiment, slug=options.get("experiment", ""))


class PublicLinks(APIView):
    """The public links that the user may withdraw; POST makes one, or returns the one in force."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="public_links_list", responses={200: PublicLinkItem(many=True)})
    def get(self, request: Request) -> Response:
        user = cast(User, request.user)
        mine = [link for link in seen_links() if may_revoke(user, link)]
        return Response(PublicLinkItem(mine, many=True, context={"request": request}).data)

    @extend_schema(
        operation_id="public_links_create",
        request=PublicLinkRequest,
        responses={201: PublicLinkItem, 400: Errors, 404: Errors},
    )
    def post(self, request: Request) -> Response:
        user = user_with("lab.add_reportlink", request)
        asked = PublicLinkRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        with refused("experiment", asked.validated_data.get("experiment")):
            link = link_create(subject=_subject(asked.validated_data), user=user)
        answer = PublicLinkItem(link, context={"request": request}).data
        return Response(answer, status=status.HTTP_201_CREATED)


class OnePublicLink(APIView):
    """DELETE withdraws a link permanently."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="public_links_withdraw", responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        link, user = get_object_or_404(seen_links(), pk=pk), cast(User, request.user)
        if not may_revoke(user, link):
            raise PermissionDenied("This link belongs to another user.")
        link_revoke(link=link, user=user)
        return Response(status=status.HTTP_204_NO_CONTENT)
