"""The admin of users, with their groups and tokens."""

from collections.abc import Sequence
from typing import Any, cast

from allauth.mfa.models import Authenticator
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.db import router
from django.db.models import Count, ProtectedError, Q, QuerySet
from django.db.models.deletion import Collector
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from parlab.lab.models import ApiToken
from parlab.lab.services.access.groups import ADMIN, OPERATOR
from parlab.lab.services.access.tokens import token_create, tokens_revoke

admin.site.unregister(User)


@admin.register(User)
class PersonAdmin(UserAdmin[User]):
    """Users; their permissions come from their groups."""

    list_display = ("username", "in_groups", "is_active", "is_staff", "is_superuser", "tokens", "last_login")
    list_filter = ("groups", "is_active", "is_staff")
    actions = ("make_token", "revoke_token", "remove_second_factor")
    # Set by Django, never by hand.
    readonly_fields = ("last_login", "date_joined")

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        active = Count("api_tokens", Q(api_tokens__revoked_at=None))
        return super().get_queryset(request).annotate(tokens_now=active).prefetch_related("groups")

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        # Changing the password of a superuser grants superuser rights.
        return super().has_change_permission(request, obj) and _may_manage(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return super().has_delete_permission(request, obj) and _may_manage(request, obj)

    def get_deleted_objects(
        self, objs: QuerySet[User] | Sequence[User], request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        """Delete tokens with their user; users who created objects cannot be deleted, as objects refer to them."""
        collector = Collector(using=router.db_for_write(User))
        blocking = []
        for person in objs:
            try:
                collector.collect([person])
            except ProtectedError:
                blocking.append(
                    f"{person} created objects that remain; clear Active instead to disable logins and tokens"
                )
        return [str(person) for person in objs], {"people": len(objs)}, set(), blocking

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        fields = super().get_readonly_fields(request, obj)
        return fields if request.user.is_superuser else (*fields, "is_superuser", "user_permissions")

    def save_related(self, request: HttpRequest, form: ModelForm[User], formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        person = form.instance
        edits = person.groups.filter(name__in=(OPERATOR, ADMIN)).exists()
        if edits and not person.is_staff:
            text = f"User {person} may launch and change runs, but editing configurations requires staff status."
            messages.warning(request, text)

    @admin.action(description="Create API tokens", permissions=["token"])
    def make_token(self, request: HttpRequest, queryset: QuerySet[User]) -> HttpResponse | None:
        """Show new tokens in the response to this request only."""
        by = cast(User, request.user)
        created: list[tuple[User, str]] = []
        for person in queryset.filter(is_active=True):
            if not _may_manage(request, person):
                messages.error(request, f"{person}: only a superuser can create tokens for a superuser.")
                continue
            try:
                name = f"made by {by} at {timezone.now():%Y-%m-%d %H:%M:%S}"
                created.append((person, token_create(user=person, name=name, by=by)[1]))
            except ValueError as problem:
                messages.error(request, f"{person}: {problem}.")
        if not created:
            return None
        context = {**self.admin_site.each_context(request), "title": "New API tokens", "made": created}
        response = TemplateResponse(request, "admin/lab/tokens.html", context | {"opts": self.model._meta})
        response.headers["Cache-Control"] = "no-store"
        return response

    @admin.action(description="Revoke API tokens", permissions=["token"])
    def revoke_token(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        count = tokens_revoke(tokens=ApiToken.objects.filter(user__in=queryset), by=cast(User, request.user))
        messages.success(
            request,
            f"Revoked {count} {'token' if count == 1 else 'tokens'}; revoked tokens are answered with 401.",
        )

    @admin.action(description="Remove second factors", permissions=["token"])
    def remove_second_factor(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        """For people who lost theirs: the password alone lets them in again."""
        people = [person for person in queryset if _may_manage(request, person)]
        Authenticator.objects.filter(user__in=people).delete()
        messages.success(request, f"Removed the second factors of {', '.join(map(str, people)) or 'nobody'}.")

    def has_token_permission(self, request: HttpRequest) -> bool:
        # A token grants all permissions of its user.
        return request.user.has_perm("lab.add_apitoken") and request.user.has_perm("auth.change_user")

    @admin.display(description="groups")
    def in_groups(self, person: User) -> str:
        return ", ".join(group.name for group in person.groups.all()) or "-"

    @admin.display(description="API tokens", ordering="tokens_now")
    def tokens(self, person: User) -> int:
        return int(getattr(person, "tokens_now", 0))


def _may_manage(request: HttpRequest, person: User | None) -> bool:
    return person is None or not person.is_superuser or bool(request.user.is_superuser)
