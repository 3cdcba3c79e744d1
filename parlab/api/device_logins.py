"""Logins of `parlab login`, the only requests without credentials: a code that a user confirms becomes a token."""

from __future__ import annotations

from typing import Any

from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, permissions, status
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.lab.models import SCOPES, USUAL_SCOPES
from parlab.lab.services.access.device_logins import (
    LIFETIME,
    POLL_EVERY,
    Ended,
    TooMany,
    device_login_begin,
    device_login_collect,
)

from .errors import Problem, refused
from .serializers import Errors


class LoginRequest(drf.Serializer[Any]):
    host = drf.CharField(max_length=120, help_text="Name of the machine that the token is for.")
    scopes = drf.ListField(
        child=drf.ChoiceField(choices=list(SCOPES)),
        required=False,
        help_text="Of the token; by default read, write, launch.",
    )


class LoginItem(drf.Serializer[Any]):
    """A login that waits for a user, who opens the address and compares the code."""

    device_code = drf.CharField(help_text="Secret of the client, with which it collects the token.")
    user_code = drf.CharField(help_text="The code that the user confirms.")
    verification_uri = drf.CharField()
    verification_uri_complete = drf.CharField(help_text="The same with the code.")
    expires_in = drf.IntegerField(help_text="Seconds.")
    interval = drf.IntegerField(help_text="Seconds between two requests for the token.")


class CollectRequest(drf.Serializer[Any]):
    device_code = drf.CharField(max_length=100)


class WaitingItem(drf.Serializer[Any]):
    interval = drf.IntegerField(help_text="Seconds until the next request.")


class CollectedToken(drf.Serializer[Any]):
    """The token of a confirmed login; only this response contains its secret."""

    secret = drf.CharField()
    name = drf.CharField()
    username = drf.CharField()
    scopes = drf.ListField(child=drf.CharField())
    expires_at = drf.DateTimeField()


class Gone(Problem):
    """A login that has expired, was denied, or was used."""

    status_code: int = status.HTTP_410_GONE


class DeviceLogins(APIView):
    """POST begins a login; it needs no token."""

    authentication_classes = ()
    permission_classes = [permissions.AllowAny]

    @extend_schema(
        operation_id="device_login_begin", auth=[], request=LoginRequest, responses={201: LoginItem, 429: Errors}
    )
    def post(self, request: Request) -> Response:
        body = LoginRequest(data=request.data)
        body.is_valid(raise_exception=True)
        address = str(request.META.get("REMOTE_ADDR", ""))
        scopes = body.validated_data.get("scopes", USUAL_SCOPES)
        try:
            with refused("scopes", scopes):
                login, secret = device_login_begin(host=body.validated_data["host"], address=address, scopes=scopes)
        except TooMany as error:
            raise exceptions.Throttled(error.wait_s, str(error)) from error
        page = request.build_absolute_uri(reverse("device-login"))
        item = {
            "device_code": secret,
            "user_code": login.user_code,
            "verification_uri": page,
            "verification_uri_complete": f"{page}?code={login.user_code}",
            "expires_in": int(LIFETIME.total_seconds()),
            "interval": int(POLL_EVERY.total_seconds()),
        }
        return Response(LoginItem(item).data, status=status.HTTP_201_CREATED)


class DeviceToken(APIView):
    """POST collects the token of a confirmed login, once; it needs no token."""

    authentication_classes = ()
    permission_classes = [permissions.AllowAny]

    @extend_schema(
        operation_id="device_login_collect",
        auth=[],
        request=CollectRequest,
        responses={200: CollectedToken, 202: WaitingItem, 410: Errors, 429: Errors},
        description="202: no user has answered yet. 410: the login has expired, was denied or was used.",
    )
    def post(self, request: Request) -> Response:
        body = CollectRequest(data=request.data)
        body.is_valid(raise_exception=True)
        try:
            with refused("device_code"):
                collected = device_login_collect(secret=body.validated_data["device_code"])
        except TooMany as error:
            raise exceptions.Throttled(error.wait_s, str(error)) from error
        except Ended as error:
            message, _, remedy = str(error).partition("; ")
            raise Gone(message, field="device_code", value=None, remedy=remedy) from error
        if collected is None:
            waiting = {"interval": int(POLL_EVERY.total_seconds())}
            return Response(WaitingItem(waiting).data, status=status.HTTP_202_ACCEPTED)
        token, secret = collected
        item = {
            "secret": secret,
            "name": token.name,
            "username": token.user.get_username(),
            "scopes": token.scope_names,
            "expires_at": token.expires_at,
        }
        return Response(CollectedToken(item).data, headers={"Cache-Control": "no-store"})
