"""The version of the server. `/version` is MLflow's."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import permissions
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.client.version import VERSION


class ServerVersionItem(drf.Serializer[Any]):
    version = drf.CharField()


class ServerVersion(APIView):
    """The version of parlab that the server runs."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="server_version", responses={200: ServerVersionItem})
    def get(self, _request: Request) -> Response:
        return Response(ServerVersionItem({"version": VERSION}).data)
