"""The admin of configurations: their list; the sweep builder is their form."""

import json
from collections.abc import Sequence
from math import prod
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Count, QuerySet
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
)
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from parlab.fleet import services as fleet
from parlab.lab.models import Config, Experiment
from parlab.lab.services.runs import Launch, point_label

from .acting import act_on_each, back, pretty


@admin.register(Config)
class ConfigAdmin(admin.ModelAdmin[Config]):
    """List, launch and delete configurations; the builder adds and changes them."""

    list_display = ("__str__", "note", "point_count", "run_count", "created_by", "created_at", "short_digest")
    list_filter = (("experiment", admin.RelatedOnlyFieldListFilter), "created_at")
    list_select_related = ("experiment", "created_by")
    search_fields = ("experiment__name", "note", "digest")
    actions = ("launch",)
    _read_only_fields = ("experiment", "note", "configuration", "axes")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Config]:
        return super().get_queryset(request).annotate(runs_made=Count("runs"))

    def get_fields(self, request: HttpRequest, obj: Config | None = None) -> tuple[str, ...]:
        return self._read_only_fields

    def get_readonly_fields(self, request: HttpRequest, obj: Config | None = None) -> tuple[str, ...]:
        return self._read_only_fields

    def has_delete_permission(self, request: HttpRequest, obj: Config | None = None) -> bool:
        # Runs refer to their config, so a used config is deleted only with its experiment.
        return super().has_delete_permission(request, obj) and (obj is None or not obj.is_used)

    def get_deleted_objects(
        self, objs: QuerySet[Config] | Sequence[Config], request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        used = [f"{config} is used by runs; delete its experiment instead" for config in objs if config.is_used]
        return [str(config) for config in objs], {"configs": len(objs)}, set(), used

    def has_launch_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("lab.add_run")

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Open the builder, for the next version of `?experiment=` if it is named."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        query = request.GET.copy()
        number = "".join(query.pop("experiment", []))
        experiment = Experiment.objects.filter(pk=number).first() if number.isdecimal() else None
        address = reverse("sweep-edit", args=[experiment.slug]) if experiment else reverse("sweep-new")
        return HttpResponseRedirect(f"{address}?{query.urlencode()}" if query else address)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Open the builder with this version; who may not change it reads it here."""
        config = self.get_object(request, object_id)
        if config is None or not self.has_change_permission(request, config) or not self.has_add_permission(request):
            return super().change_view(request, object_id, form_url, extra_context)
        address = reverse("sweep-edit", args=[config.experiment.slug])
        return HttpResponseRedirect(f"{address}?version={config.version}")

    @admin.action(description="Launch", permissions=["launch"])
    def launch(self, request: HttpRequest, queryset: QuerySet[Config]) -> HttpResponse | None:
        def act(config: Config) -> str:
            config.digest = request.POST.get(f"seen-{config.pk}", "")
            return launch_sentence(fleet.launch(config=config, user=request.user))  # type: ignore[arg-type]

        act_on_each(request, queryset, act)
        return back(request, queryset)

    @admin.display(description="points")
    def point_count(self, config: Config) -> int:
        return prod(len(values) for values in config.sweep.values())

    @admin.display(description="runs", ordering="runs_made")
    def run_count(self, config: Config) -> int:
        return int(getattr(config, "runs_made", 0))

    @admin.display(description="digest")
    def short_digest(self, config: Config) -> SafeString:
        # The hidden field says what the list showed when its action is confirmed.
        hidden = format_html('<input type="hidden" name="seen-{}" value="{}">', config.pk, config.digest)
        return format_html("<code>{}</code>{}", config.digest[:12], hidden)

    @admin.display(description="configuration")
    def configuration(self, config: Config) -> SafeString:
        return pretty(json.dumps(config.data, indent=2))

    @admin.display(description="sweep")
    def axes(self, config: Config) -> SafeString:
        return pretty(json.dumps(config.sweep, indent=2))


def launch_sentence(launch: Launch) -> str:
    """Describe the result of a launch, including points that cannot run."""
    parts = [f"launched {len(launch.created)} {_plural('run', len(launch.created))}"]
    if launch.approval is not None:
        parts.append(f"{launch.approval.amount} wait for the approval of a maintainer")
    if launch.existing:
        parts.append(f"{launch.existing} {_plural('point', launch.existing)} already had a run")
    if launch.invalid:
        problem = launch.invalid[0].problems[0]
        count = len(launch.invalid)
        parts.append(
            f"{count} {_plural('point', count)} cannot run: {point_label(launch.invalid[0].values)}: {problem}"
        )
    return "; ".join(parts)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
