"""What a user keeps: columns of lists, what is seen."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem, stated_experiment
from parlab.api.serializers import Errors
from parlab.lab.services.pages.list_columns import LISTS, columns_choose, shown_columns
from parlab.lab.services.pages.visits import visit_dismiss


class ColumnsItem(drf.Serializer[Any]):
    """Columns of a list of the pages."""

    columns = drf.DictField(child=drf.CharField(), help_text="Name -> title.")
    shown = drf.ListField(child=drf.CharField())


class ColumnsRequest(drf.Serializer[Any]):
    shown = drf.ListField(child=drf.CharField(max_length=80), max_length=200, help_text="All columns to show.")


class SeenRequest(drf.Serializer[Any]):
    experiment = drf.SlugField(required=False, allow_null=True, help_text="Slug; without one: Home.")


class Columns(APIView):
    """The columns that the user sees in the list `experiments` or `runs`."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="columns_read", responses={200: ColumnsItem})
    def get(self, request: Request, name: str) -> Response:
        return Response(_columns(request, name))

    @extend_schema(operation_id="columns_choose", request=ColumnsRequest, responses={200: ColumnsItem, 400: Errors})
    def put(self, request: Request, name: str) -> Response:
        columns = _columns(request, name)["columns"]
        asked = ColumnsRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        shown = asked.validated_data["shown"]
        unknown = next((each for each in shown if each not in columns), None)
        if unknown is not None:
            remedy = f"use some of {', '.join(columns)}"
            raise Problem(f"no column {unknown!r}", field="shown", value=shown, remedy=remedy)
        columns_choose(user=cast(User, request.user), name=name, shown=shown)
        return Response(_columns(request, name))


def _columns(request: Request, name: str) -> dict[str, Any]:
    if name not in LISTS:
        raise Http404(f"unknown list {name}")
    titles = {column.name: str(column.title) for column in LISTS[name]}
    shown = shown_columns(cast(User, request.user), name)
    return {"columns": titles, "shown": [each for each in titles if each in shown]}


class Seen(APIView):
    """Take everything that changed on Home, or on the page of an experiment, as seen."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="seen", request=SeenRequest, responses={204: None, 400: Errors})
    def post(self, request: Request) -> Response:
        asked = SeenRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        slug = asked.validated_data.get("experiment")
        experiment = stated_experiment(slug) if slug else None
        visit_dismiss(user=cast(User, request.user), experiment=experiment)
        return Response(status=status.HTTP_204_NO_CONTENT)
