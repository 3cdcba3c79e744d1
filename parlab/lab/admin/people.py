"""Users with their groups and tokens."""

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from rest_framework.authtoken.models import Token

from parlab.lab.services.groups import ADMIN, OPERATOR

admin.site.unregister(User)


@admin.register(User)
class PersonAdmin(UserAdmin[User]):
    """People; what they may do comes from their groups."""

    list_display = ("username", "in_groups", "is_active", "is_staff", "is_superuser", "has_token", "last_login")
    list_filter = ("groups", "is_active", "is_staff")
    actions = ("make_token", "revoke_token")

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        return super().get_queryset(request).select_related("auth_token").prefetch_related("groups")

    def save_related(self, request: HttpRequest, form: ModelForm[User], formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        person = form.instance
        edits = person.groups.filter(name__in=(OPERATOR, ADMIN)).exists()
        if edits and not person.is_staff:
            text = (
                f"User {person} may launch and change runs; configurations are edited here, which needs staff status."
            )
            messages.warning(request, text)

    @admin.action(description="Make API tokens", permissions=["token"])
    def make_token(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        for person in queryset.filter(is_active=True):
            token, is_new = Token.objects.get_or_create(user=person)
            what = "New token" if is_new else "Token that was there already"
            messages.success(request, f"{what} of {person}: {token.key}")

    @admin.action(description="Revoke API tokens", permissions=["token"])
    def revoke_token(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        count, _ = Token.objects.filter(user__in=queryset).delete()
        messages.success(
            request, f"Revoked {count} {'token' if count == 1 else 'tokens'}; requests with them end in 401"
        )

    def has_token_permission(self, request: HttpRequest) -> bool:
        # Who holds another's token may do what the other one may.
        return request.user.has_perm("authtoken.add_tokenproxy") and request.user.has_perm("auth.change_user")

    @admin.display(description="groups")
    def in_groups(self, person: User) -> str:
        return ", ".join(group.name for group in person.groups.all()) or "-"

    @admin.display(description="API token", boolean=True)
    def has_token(self, person: User) -> bool:
        return hasattr(person, "auth_token")
