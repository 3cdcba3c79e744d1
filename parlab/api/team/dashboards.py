"""Saved views and dashboards."""

from __future__ import annotations

from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import refused, stated_experiment
from parlab.api.permissions import user_with
from parlab.api.serializers import Errors
from parlab.lab.models import Dashboard, SavedView
from parlab.lab.services.access.rights import require_change
from parlab.lab.services.pages import dashboards as work
from parlab.lab.services.pages.saved_views import view_save

_LISTED = 500


class ViewRequest(drf.Serializer[Any]):
    """A view to save."""

    name = drf.CharField(max_length=80)
    address = drf.CharField(max_length=8_000, help_text="Path and query of a list, an experiment or a comparison.")
    is_default = drf.BooleanField(default=False, help_text="Whether the page opens with this view for everybody.")


class ViewItem(drf.ModelSerializer[SavedView]):
    """A named address of a page."""

    owner = drf.CharField(source="owner.username")
    address = drf.CharField()

    class Meta:
        model = SavedView
        fields = ["id", "name", "address", "is_default", "owner", "created_at"]


class PanelItem(drf.Serializer[Any]):
    """A panel: Markdown with the directives of reports, and its place."""

    title = drf.CharField(max_length=120, allow_blank=True)
    text = drf.CharField(max_length=work.MAX_TEXT, allow_blank=True)
    width = drf.ChoiceField([name for name, _ in work.WIDTHS], default="half")
    height = drf.ChoiceField([name for name, _ in work.HEIGHTS], default="usual")
    columns = drf.IntegerField(min_value=0, max_value=12, default=0, help_text="Of 12, if it was dragged; 0: of width.")
    rows = drf.IntegerField(min_value=0, max_value=20, default=0, help_text="Of 24 pixels; 0: of height.")


class DashboardRequest(drf.Serializer[Any]):
    """A dashboard to create; without panels, one about an experiment gets the usual panels."""

    name = drf.CharField(max_length=120)
    experiment = drf.SlugField(required=False, allow_null=True, help_text="Slug.")
    panels = PanelItem(many=True, required=False)


class DashboardChange(drf.Serializer[Any]):
    """A dashboard as it shall be; `revision` is the one that was read."""

    revision = drf.IntegerField()
    name = drf.CharField(max_length=120)
    panels = PanelItem(many=True)
    is_default = drf.BooleanField(default=False, help_text="Whether its experiment links to it for everybody.")


class DashboardItem(drf.ModelSerializer[Dashboard]):
    """A dashboard with its panels."""

    owner = drf.CharField(source="owner.username")
    experiment = drf.CharField(source="experiment.slug", allow_null=True, default=None)
    panels = PanelItem(many=True)
    url = drf.CharField(source="get_absolute_url")

    class Meta:
        model = Dashboard
        fields = ["id", "name", "experiment", "is_default", "panels", "revision", "owner", "saved_at", "url"]


class Views(APIView):
    """Saved views of all pages; POST saves one, or replaces the one of the same page and name."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="views_list", responses={200: ViewItem(many=True)})
    def get(self, _request: Request) -> Response:
        views = SavedView.objects.select_related("owner").order_by("path", "name")[:_LISTED]
        return Response(ViewItem(views, many=True).data)

    @extend_schema(operation_id="views_save", request=ViewRequest, responses={201: ViewItem, 400: Errors})
    def post(self, request: Request) -> Response:
        user = user_with("pages.add_savedview", request)
        asked = ViewRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        with refused("address", asked.validated_data["address"]):
            view = view_save(**asked.validated_data, user=user)
        return Response(ViewItem(view).data, status=status.HTTP_201_CREATED)


class OneView(APIView):
    """Delete a saved view: its owner, or a maintainer of the project."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="views_delete", responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        view = get_object_or_404(SavedView, pk=pk)
        require_change(request.user, view)
        view.delete()
        return Response(status=status.HTTP_204_NO_CONTENT)


class Dashboards(APIView):
    """All dashboards; POST creates one."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="dashboards_list", responses={200: DashboardItem(many=True)})
    def get(self, _request: Request) -> Response:
        rows = Dashboard.objects.select_related("experiment", "owner").order_by("name")[:_LISTED]
        return Response(DashboardItem(rows, many=True).data)

    @extend_schema(
        operation_id="dashboards_create", request=DashboardRequest, responses={201: DashboardItem, 400: Errors}
    )
    def post(self, request: Request) -> Response:
        user = user_with("pages.add_dashboard", request)
        asked = DashboardRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        options = asked.validated_data
        slug = options.get("experiment")
        experiment = stated_experiment(slug) if slug else None
        with refused("name", options["name"]):
            made = work.dashboard_create(name=options["name"], experiment=experiment, user=user)
            if "panels" in options:
                made = _save(made, made.revision, options["name"], options["panels"], is_default=False)
        return Response(DashboardItem(made).data, status=status.HTTP_201_CREATED)


class OneDashboard(APIView):
    """One dashboard; PUT saves it as it shall be, DELETE deletes it."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="dashboards_read", responses={200: DashboardItem})
    def get(self, _request: Request, pk: int) -> Response:
        return Response(DashboardItem(_dashboard(pk)).data)

    @extend_schema(operation_id="dashboards_save", request=DashboardChange, responses={200: DashboardItem, 400: Errors})
    def put(self, request: Request, pk: int) -> Response:
        user_with("pages.change_dashboard", request)
        dashboard = _dashboard(pk)
        require_change(request.user, dashboard)
        asked = DashboardChange(data=request.data)
        asked.is_valid(raise_exception=True)
        options = asked.validated_data
        with refused("revision", options["revision"]):
            _save(dashboard, options["revision"], options["name"], options["panels"], is_default=options["is_default"])
        return Response(DashboardItem(_dashboard(pk)).data)

    @extend_schema(operation_id="dashboards_delete", responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        user_with("pages.delete_dashboard", request)
        dashboard = _dashboard(pk)
        require_change(request.user, dashboard)
        dashboard.delete()
        return Response(status=status.HTTP_204_NO_CONTENT)


def _dashboard(pk: int) -> Dashboard:
    return get_object_or_404(Dashboard.objects.select_related("experiment", "owner"), pk=pk)


def _save(
    dashboard: Dashboard, revision: int, name: str, panels: list[dict[str, Any]], *, is_default: bool
) -> Dashboard:
    if len(panels) > work.MAX_PANELS:
        raise ValueError(f"{len(panels)} panels are too many; use up to {work.MAX_PANELS}")
    parts = [work.Panel(**panel) for panel in panels]
    return work.dashboard_save(dashboard=dashboard, name=name, panels=parts, is_default=is_default, revision=revision)
