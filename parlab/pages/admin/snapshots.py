"""The admin of snapshots."""

import json

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from parlab.lab.models import Snapshot

from .acting import ReadOnly, link, pretty


@admin.register(Snapshot)
class SnapshotAdmin(ReadOnly, admin.ModelAdmin[Snapshot]):
    list_display = ("__str__", "kind", "run", "attempt_number", "created_at")
    list_filter = ("kind", ("experiment", admin.RelatedOnlyFieldListFilter), "created_at")
    list_select_related = ("run__experiment",)
    search_fields = ("digest", "run__label", "experiment__name")
    fields = ("kind", "experiment", "run_link", "attempt_number", "created_at", "name", "content_as_text")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Snapshot]:
        snapshots = super().get_queryset(request).select_related("run__experiment", "experiment")
        is_list = request.resolver_match is not None and str(request.resolver_match.url_name).endswith("_changelist")
        return snapshots.defer("content", "run__resolved", "run__summary") if is_list else snapshots

    @admin.display(description="run")
    def run_link(self, snapshot: Snapshot) -> SafeString | str:
        return link(snapshot.run) if snapshot.run else "-"

    @admin.display(description="digest")
    def name(self, snapshot: Snapshot) -> SafeString:
        state = "the content matches the digest" if snapshot.is_intact else "THE CONTENT WAS ALTERED"
        return format_html("<code>{}</code> ({})", snapshot.digest, state)

    @admin.display(description="content")
    def content_as_text(self, snapshot: Snapshot) -> SafeString:
        return pretty(json.dumps(snapshot.content, indent=2))
