"""The admin of runs and their attempts."""

import json
import shlex
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from parlab.charts.format import quantity
from parlab.fleet import services as fleet
from parlab.lab.models import Attempt, Run
from parlab.lab.services.access.rights import may_change

from .acting import CreatedBy, act_on_each, back, buttons, confirmation, link, pretty


class AttemptInline(admin.StackedInline[Attempt, Run]):
    """The attempts of a run; only nodes write them."""

    model = Attempt
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("state", "nodes", "exit_code", "last_step"),
                    ("started_at", "ended_at"),
                    "reason",
                    "command_line",
                    "last_traceback",
                )
            },
        ),
    )
    readonly_fields = flatten_fieldsets(fieldsets)
    extra = 0
    can_delete = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attempt]:
        return (
            super()
            .get_queryset(request)
            .select_related("run__experiment")
            .prefetch_related("members__node")
            .defer("summary", "environment")
        )

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.display(description="nodes")
    def nodes(self, attempt: Attempt) -> str:
        return ", ".join(member.node_name for member in attempt.members.all()) or "-"

    @admin.display(description="command")
    def command_line(self, attempt: Attempt) -> SafeString | str:
        return pretty(shlex.join(attempt.command)) if attempt.command else "-"

    @admin.display(description="traceback")
    def last_traceback(self, attempt: Attempt) -> SafeString | str:
        return pretty(attempt.traceback) if attempt.traceback else "-"


@admin.register(Run)
class RunAdmin(CreatedBy, admin.ModelAdmin[Run]):
    """Runs are created by launching a configuration and updated by their nodes; users cancel and relaunch them."""

    list_display = (
        "__str__",
        "label",
        "state",
        "step_time",
        "throughput",
        "memory",
        "attempt_number",
        "kind",
    )
    list_filter = ("state", "origin", ("experiment", admin.RelatedOnlyFieldListFilter), "queued_at")
    list_select_related = ("experiment",)
    search_fields = ("label", "experiment__name", "reason")
    change_form_template = "admin/lab/change_form.html"
    inlines = (AttemptInline,)
    actions = ("cancel", "relaunch")
    fieldsets = (
        (None, {"fields": ("experiment", "number", "label", "config_link", "origin", "creator")}),
        (
            "State",
            {
                "fields": (
                    "state",
                    "reason",
                    "waits_because",
                    "attempt_number",
                    "cancel_requested_at",
                    ("queued_at", "started_at", "ended_at"),
                )
            },
        ),
        ("Results", {"fields": (("step_time", "throughput", "tokens", "memory"), "all_results")}),
        ("Configuration", {"fields": ("point_values", "resolved_config"), "classes": ("collapse",)}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        runs = super().get_queryset(request)
        return runs.select_related("experiment", "config__experiment", "created_by")

    def get_readonly_fields(self, request: HttpRequest, obj: Run | None = None) -> list[str]:
        return flatten_fieldsets(self.fieldsets)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Run | None = None) -> bool:
        return False

    def get_view_on_site_url(self, obj: Run | None = None) -> str | None:
        return obj.get_absolute_url() if obj is not None else None

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        run = self.get_object(request, object_id)
        is_offered = run is not None and run.origin == Run.Origin.MEASURED and may_change(request.user, run)
        names = () if run is None or not is_offered else ("relaunch",) if run.is_final else ("cancel",)
        hidden = {"show_save": False, "show_save_and_continue": False, "show_close": False}
        context = (extra_context or {}) | hidden | buttons(self, request, *names)
        return super().change_view(request, object_id, form_url, context)

    @admin.action(description="Cancel", permissions=["change"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Run]) -> HttpResponse | None:
        question = "Cancel these runs? Their measurements so far are kept."
        page = confirmation(self, request, queryset, action="cancel", question=question, yes="Cancel the runs")
        if page is not None:
            return page

        def act(run: Run) -> str:
            return "cancelled" if fleet.cancel(run=run).is_final else "cancellation requested from its node"

        act_on_each(request, queryset, act)
        return back(request, queryset)

    @admin.action(description="Relaunch", permissions=["change"])
    def relaunch(self, request: HttpRequest, queryset: QuerySet[Run]) -> HttpResponse | None:
        question = "Relaunch these runs? The results of the new attempts replace the current ones in all tables."
        page = confirmation(self, request, queryset, action="relaunch", question=question, yes="Relaunch the runs")
        if page is not None:
            return page

        def act(run: Run) -> str:
            attempt = fleet.relaunch(run=run, user=request.user)  # type: ignore[arg-type]
            return f"queued as attempt {attempt.number}"

        act_on_each(request, queryset, act)
        return back(request, queryset)

    @admin.display(description="origin", ordering="origin")
    def kind(self, run: Run) -> str:
        return run.origin

    @admin.display(description="step time", ordering="step_time_s")
    def step_time(self, run: Run) -> str:
        return quantity(run.step_time_s, "s")

    @admin.display(description="throughput", ordering="samples_per_s")
    def throughput(self, run: Run) -> str:
        return quantity(run.samples_per_s, "samples/s")

    @admin.display(description="tokens")
    def tokens(self, run: Run) -> str:
        return quantity(run.tokens_per_s, "tokens/s")

    @admin.display(description="peak memory", ordering="memory_max_bytes")
    def memory(self, run: Run) -> str:
        return quantity(run.memory_max_bytes, "B")

    @admin.display(description="config")
    def config_link(self, run: Run) -> SafeString:
        return link(run.config)

    @admin.display(description="waiting for")
    def waits_because(self, run: Run) -> str:
        return fleet.waiting_reason(run) or "-"

    @admin.display(description="summary")
    def all_results(self, run: Run) -> SafeString:
        return pretty(json.dumps(run.summary, indent=2))

    @admin.display(description="point")
    def point_values(self, run: Run) -> SafeString:
        return pretty(json.dumps(run.point, indent=2))

    @admin.display(description="resolved configuration")
    def resolved_config(self, run: Run) -> SafeString:
        return pretty(json.dumps(run.resolved, indent=2))
