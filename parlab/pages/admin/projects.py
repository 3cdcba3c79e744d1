"""The admin of projects with their members and pools."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from parlab.lab.models import Membership, Project, ProjectPool


class MembershipInline(admin.TabularInline[Membership, Project]):
    model = Membership
    extra = 0
    autocomplete_fields = ("user",)


class PoolInline(admin.TabularInline[ProjectPool, Project]):
    model = ProjectPool
    extra = 0


@admin.register(Project)
class ProjectAdmin(admin.ModelAdmin[Project]):
    """Administrators create and change all projects here; the shared one stays."""

    list_display = ("name", "slug", "visibility", "is_shared", "created_at")
    search_fields = ("name", "slug")
    fields = ("name", "slug", "visibility")
    prepopulated_fields = {"slug": ("name",)}  # as Django declares it
    inlines = (MembershipInline, PoolInline)

    def get_readonly_fields(self, request: HttpRequest, obj: Project | None = None) -> Any:
        return () if obj is None else ("slug",)

    def get_prepopulated_fields(self, request: HttpRequest, obj: Project | None = None) -> Any:
        return self.prepopulated_fields if obj is None else {}

    def has_delete_permission(self, request: HttpRequest, obj: Project | None = None) -> bool:
        is_empty = obj is None or not (obj.is_shared or obj.experiments.exists())
        return super().has_delete_permission(request, obj) and is_empty

    def save_model(self, request: HttpRequest, obj: Project, form: Any, change: bool) -> None:
        if not change:
            obj.created_by_id = request.user.pk
        super().save_model(request, obj, form, change)
