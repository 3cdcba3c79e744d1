"""The admin of API tokens."""

from typing import cast

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest

from parlab.lab.models import ApiToken
from parlab.lab.services.access.tokens import tokens_revoke

from .acting import ReadOnly


class ActiveFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "in_force"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[ApiToken]) -> list[tuple[str, str]]:
        return [("yes", "Active"), ("no", "Revoked")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[ApiToken]) -> QuerySet[ApiToken]:
        value = self.value()
        return queryset if value is None else queryset.filter(revoked_at__isnull=value == "yes")


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnly, admin.ModelAdmin[ApiToken]):
    """View and revoke tokens; users create their own, administrators create them in the list of users."""

    list_display = (
        "name",
        "user",
        "ends_with",
        "in_force",
        "scopes",
        "expires_at",
        "created_at",
        "created_by",
        "last_used_at",
        "revoked_at",
    )
    list_filter = (ActiveFilter, ("user", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("user", "created_by")
    search_fields = ("name", "user__username", "ending")
    fields = (
        "name",
        "user",
        "ends_with",
        "scopes",
        "expires_at",
        "created_at",
        "created_by",
        "last_used_at",
        "revoked_at",
        "revoked_by",
    )
    readonly_fields = fields
    actions = ("revoke",)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("lab.change_apitoken")

    @admin.action(description="Revoke", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiToken]) -> None:
        count = tokens_revoke(tokens=queryset, by=cast(User, request.user))
        messages.success(
            request,
            f"Revoked {count} {'token' if count == 1 else 'tokens'}; revoked tokens are answered with 401.",
        )

    @admin.display(description="ends with")
    def ends_with(self, token: ApiToken) -> str:
        return f"…{token.ending}"

    @admin.display(description="active", boolean=True)
    def in_force(self, token: ApiToken) -> bool:
        return not token.is_revoked and not token.is_expired
