"""The admin of studies."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from parlab.tuner.models import Study, Trial

from .acting import CreatedBy


class TrialInline(admin.TabularInline[Trial, Study]):
    model = Trial
    fields = ("number", "role", "key", "run", "expected", "why")
    readonly_fields = ("number", "role", "key", "run", "expected", "why")
    extra = 0
    can_delete = False
    show_change_link = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Study)
class StudyAdmin(CreatedBy, admin.ModelAdmin[Study]):
    """A read-only view of a study; its own page starts, pauses and cancels it."""

    list_display = ["__str__", "strategy", "objective", "state", "created_by", "created_at"]
    list_filter = ["state", "strategy", "objective"]
    list_select_related = ["config__experiment", "created_by"]
    exclude = ["created_by"]
    readonly_fields = ["creator"]
    inlines = [TrialInline]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
