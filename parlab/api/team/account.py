"""The account of the user of a token: permissions, mail address, API tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from django.contrib.auth.models import User
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem, refused
from parlab.api.serializers import Errors
from parlab.lab.models import SCOPES, ApiToken, Project
from parlab.lab.selectors.projects import seen_project
from parlab.lab.services.access.rights import viewer_for
from parlab.lab.services.access.tokens import token_create, tokens_revoke


class AccountItem(drf.Serializer[Any]):
    """The user that the requests of a token act for."""

    username = drf.CharField()
    email = drf.CharField(allow_blank=True, help_text="Where mails go; empty: no mails.")
    groups = drf.ListField(child=drf.CharField())
    permissions = drf.ListField(child=drf.CharField())
    scopes = drf.ListField(child=drf.CharField(), help_text="Of this token.")


class AccountRequest(drf.Serializer[Any]):
    email = drf.EmailField(allow_blank=True, max_length=254, help_text="Empty: no mails.")


class TokenItem(drf.ModelSerializer[ApiToken]):
    """A token in force; its secret is not stored."""

    project = drf.CharField(source="project.slug", help_text="Slug of the project that it reaches.")

    scopes = drf.ListField(child=drf.CharField(), source="scope_names")

    class Meta:
        model = ApiToken
        fields = ["id", "name", "ending", "scopes", "project", "created_at", "expires_at", "last_used_at"]


class CreatedToken(TokenItem):
    """A new token; only this response contains its secret."""

    secret = drf.CharField()

    class Meta(TokenItem.Meta):
        fields = [*TokenItem.Meta.fields, "secret"]


class TokenRequest(drf.Serializer[Any]):
    """A token to create. It may not do more than the token of the request, nor last longer."""

    name = drf.CharField(max_length=80, help_text="What it is for.")
    scopes = drf.ListField(
        child=drf.ChoiceField(choices=list(SCOPES)), required=False, help_text="By default those of this token."
    )
    project = drf.SlugField(required=False, help_text="Slug of the project that it reaches; a token's is its own.")
    days = drf.IntegerField(
        required=False, allow_null=True, help_text="By default, and at most, as long as this token; null: no expiry."
    )


class Account(APIView):
    """The account; PATCH changes its mail address."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="account_read", responses={200: AccountItem})
    def get(self, request: Request) -> Response:
        return Response(_account(request))

    @extend_schema(operation_id="account_change", request=AccountRequest, responses={200: AccountItem, 400: Errors})
    def patch(self, request: Request) -> Response:
        asked = AccountRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        user = cast(User, request.user)
        user.email = asked.validated_data["email"]
        user.save(update_fields=["email"])
        return Response(_account(request))


def _account(request: Request) -> dict[str, Any]:
    user = cast(User, request.user)
    token = _token(request)
    return {
        "username": user.get_username(),
        "email": user.email,
        "groups": sorted(user.groups.values_list("name", flat=True)),
        "permissions": sorted(user.get_all_permissions()),
        "scopes": list(token.scope_names if token else SCOPES),
    }


def _token(request: Request) -> ApiToken | None:
    """Return the token of a request; None for a session."""
    return request.auth if isinstance(request.auth, ApiToken) else None


class Tokens(APIView):
    """The user's tokens in force; POST creates one."""

    token_scope = "admin"
    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="tokens_list", responses={200: TokenItem(many=True)})
    def get(self, request: Request) -> Response:
        return Response(TokenItem(_tokens(request), many=True).data)

    @extend_schema(operation_id="tokens_create", request=TokenRequest, responses={201: CreatedToken, 400: Errors})
    def post(self, request: Request) -> Response:
        asked = TokenRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        options = asked.validated_data
        user = cast(User, request.user)
        with refused("name", options["name"]):
            token, secret = token_create(
                user=user, by=user, project=_project(request, options.get("project")), **token_options(request, options)
            )
        return made_token(token, secret)


def token_options(request: Request, options: dict[str, Any]) -> dict[str, Any]:
    """Return name, scopes and lifetime of a token to create; raises Problem beyond those of the token that asks."""
    own = _token(request)
    allowed = own.scope_names if own else SCOPES
    scopes = options.get("scopes", list(allowed))
    more = [scope for scope in scopes if not (own is None or own.allows(scope))]
    if more:
        problem = f"this token has no scope {' and '.join(more)}"
        remedy = f"use some of {', '.join(allowed)}, or create the token on your account page"
        raise Problem(problem, field="scopes", value=scopes, remedy=remedy)
    days = _days(options, own.expires_at if own else None)
    return {"name": options["name"], "scopes": scopes, "days": days, "created_with": own}


def made_token(token: ApiToken, secret: str) -> Response:
    """Return the response with the secret of a new token, which ends with the one that has asked for it."""
    own = token.created_with
    if own is not None and own.expires_at is not None and token.expires_at is not None:
        # Days are whole; the last one would outlive the token that asks.
        token.expires_at = min(token.expires_at, own.expires_at)
        token.save(update_fields=["expires_at"])
    content = {**TokenItem(token).data, "secret": secret}
    return Response(content, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


def _project(request: Request, slug: str | None) -> Project | None:
    """Return the project of a new token; a token creates others only in its own."""
    return seen_project(viewer_for(request.user), slug) if slug else None


def _days(options: dict[str, Any], until: datetime | None) -> int | None:
    """Return the lifetime of a new token in days; raises Problem beyond the end of the token that asks."""
    if until is None:
        days: int | None = options.get("days")
        return days
    most = (until - timezone.now()).days + 1
    days = options.get("days", most)
    if days is None or days > most:
        remedy = f"use at most {most}, or create the token on your account page"
        raise Problem("the new token would last longer than this one", field="days", value=days, remedy=remedy)
    return days


def _tokens(request: Request) -> Any:
    user = cast(User, request.user)
    return user.api_tokens.filter(revoked_at=None).select_related("project").order_by("-created_at", "-pk")


class OneToken(APIView):
    """DELETE revokes a token of the user, and those that it has created, permanently."""

    token_scope = "admin"
    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="tokens_revoke", responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        user = cast(User, request.user)
        token = get_object_or_404(ApiToken, pk=pk, user=user, revoked_at=None)
        tokens_revoke(tokens=ApiToken.objects.filter(pk=token.pk), by=user)
        return Response(status=status.HTTP_204_NO_CONTENT)
