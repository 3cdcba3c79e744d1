"""Service accounts of a project and their tokens: for its maintainers."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import refused
from parlab.api.serializers import Errors
from parlab.lab.models import SCOPES, ApiToken, Role, ServiceAccount
from parlab.lab.selectors.projects import service_account, service_accounts
from parlab.lab.services.access.service_accounts import (
    service_account_create,
    service_account_end,
    service_token_create,
)
from parlab.lab.services.access.tokens import tokens_revoke

from .account import CreatedToken, TokenItem, made_token, token_options
from .projects import managed_project


class ServiceAccountItem(drf.ModelSerializer[ServiceAccount]):
    """The account of a pipeline or a machine, which acts in one project and never logs in."""

    name = drf.CharField(source="short_name")
    username = drf.CharField(source="user.username", help_text="What runs and the audit log show.")
    role = drf.ChoiceField(Role.choices)
    tokens = drf.IntegerField(help_text="How many are in force.")

    class Meta:
        model = ServiceAccount
        fields = ["name", "username", "role", "purpose", "tokens", "created_at"]


class ServiceAccountRequest(drf.Serializer[Any]):
    name = drf.CharField(max_length=40, help_text="Lower-case letters, digits and dashes.")
    role = drf.ChoiceField(Role.choices, default=Role.OPERATOR)
    purpose = drf.CharField(max_length=120, allow_blank=True, default="", help_text="What it is for.")


class ServiceTokenRequest(drf.Serializer[Any]):
    """A token to create. It may not do more than the token of the request, nor last longer."""

    name = drf.CharField(max_length=80, help_text="What it is for.")
    scopes = drf.ListField(child=drf.ChoiceField(choices=list(SCOPES)), required=False)
    days = drf.IntegerField(required=False, allow_null=True, help_text="null: no expiry.")


class ServiceAccounts(APIView):
    """The active service accounts of a project; POST creates one."""

    token_scope = "admin"
    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="service_accounts_list", responses={200: ServiceAccountItem(many=True)})
    def get(self, request: Request, slug: str) -> Response:
        rows = service_accounts(managed_project(request, slug))
        return Response(ServiceAccountItem(rows, many=True).data)

    @extend_schema(
        operation_id="service_accounts_create",
        request=ServiceAccountRequest,
        responses={201: ServiceAccountItem, 400: Errors},
    )
    def post(self, request: Request, slug: str) -> Response:
        project = managed_project(request, slug)
        asked = ServiceAccountRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        with refused("name", asked.validated_data["name"]):
            made = service_account_create(project=project, by=cast(User, request.user), **asked.validated_data)
        item = ServiceAccountItem(service_account(project, made.short_name)).data
        return Response(item, status=status.HTTP_201_CREATED)


class OneServiceAccount(APIView):
    """DELETE ends an account for good: its tokens are revoked, its runs stay."""

    token_scope = "admin"
    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="service_accounts_end", responses={204: None})
    def delete(self, request: Request, slug: str, name: str) -> Response:
        account = service_account(managed_project(request, slug), name)
        service_account_end(account=account, by=cast(User, request.user))
        return Response(status=status.HTTP_204_NO_CONTENT)


class ServiceTokens(APIView):
    """The tokens of a service account; POST creates one."""

    token_scope = "admin"
    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="service_tokens_list", responses={200: TokenItem(many=True)})
    def get(self, request: Request, slug: str, name: str) -> Response:
        account = service_account(managed_project(request, slug), name)
        return Response(TokenItem(account.user.api_tokens.filter(revoked_at=None), many=True).data)

    @extend_schema(
        operation_id="service_tokens_create",
        request=ServiceTokenRequest,
        responses={201: CreatedToken, 400: Errors},
    )
    def post(self, request: Request, slug: str, name: str) -> Response:
        account = service_account(managed_project(request, slug), name)
        asked = ServiceTokenRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        options = token_options(request, asked.validated_data)
        with refused("name", asked.validated_data["name"]):
            token, secret = service_token_create(account=account, by=cast(User, request.user), **options)
        return made_token(token, secret)


class OneServiceToken(APIView):
    """DELETE revokes a token of a service account permanently."""

    token_scope = "admin"
    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="service_tokens_revoke", responses={204: None})
    def delete(self, request: Request, slug: str, name: str, pk: int) -> Response:
        account = service_account(managed_project(request, slug), name)
        token = get_object_or_404(ApiToken, pk=pk, user=account.user, revoked_at=None)
        tokens_revoke(tokens=ApiToken.objects.filter(pk=token.pk), by=cast(User, request.user))
        return Response(status=status.HTTP_204_NO_CONTENT)
