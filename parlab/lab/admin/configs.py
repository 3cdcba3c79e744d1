import json
from math import prod
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString

from parlab.fleet import services as fleet
from parlab.lab import services
from parlab.lab.forms import ConfigForm, fieldsets
from parlab.lab.models import Config, Run
from parlab.lab.services.runs import launchable, point_label
from runners.config import ConfigError, complete, difference, digest

from .acting import act_on_each, back, buttons, change_url, pretty

_POINTS_SHOWN = 200
_CHANGES_SHOWN = 5


class PointRow(NamedTuple):
    """One point in the preview of a sweep."""

    label: str
    problems: list[str]
    run: Run | None


@admin.register(Config)
class ConfigAdmin(admin.ModelAdmin[Config]):
    """A Config is edited as the fields of its RunConfig; saving a used one makes the next version."""

    list_display = ("__str__", "note", "point_count", "run_count", "created_by", "created_at", "short_digest")
    list_filter = (("experiment", admin.RelatedOnlyFieldListFilter), "created_at")
    list_select_related = ("experiment", "created_by")
    search_fields = ("experiment__name", "note", "digest")
    change_form_template = "admin/lab/config/change_form.html"
    actions = ("launch",)
    _seen_only = ("experiment", "note", "configuration", "axes")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Config]:
        return super().get_queryset(request).annotate(runs_made=Count("runs"))

    def get_form(self, request: HttpRequest, obj: Config | None = None, change: bool = False, **kwargs: Any) -> Any:
        return ConfigForm

    def get_fieldsets(self, request: HttpRequest, obj: Config | None = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return [(None, {"fields": self._seen_only})]
        return fieldsets()

    def get_readonly_fields(self, request: HttpRequest, obj: Config | None = None) -> Any:
        return self._seen_only if obj is not None and not self.has_change_permission(request, obj) else ()

    def has_launch_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("lab.add_run")

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        context = {"show_save_and_add_another": False, "show_save_and_continue": False, **(extra_context or {})}
        config = self.get_object(request, object_id) if object_id else None
        if config is not None:
            context |= _change_context(config) | buttons(self, request, "launch")
        return super().changeform_view(request, object_id, form_url, context)

    def save_model(self, request: HttpRequest, obj: Config, form: Any, change: bool) -> None:
        # "Add" never overwrites a version that its writer has not seen.
        based_on = Config(pk=obj.pk, digest=form.cleaned_data["seen_digest"])
        saved = services.config_save(
            experiment=obj.experiment,
            data=form.data_of_config,
            sweep=form.cleaned_data["sweep"],
            note=form.cleaned_data["note"],
            user=request.user,  # type: ignore[arg-type]
            based_on=based_on,
        )
        obj.pk = saved.pk
        obj.refresh_from_db()

    def response_add(self, request: HttpRequest, obj: Config, post_url_continue: str | None = None) -> HttpResponse:
        return self._say_what_was_saved(request, obj)

    def response_change(self, request: HttpRequest, obj: Config) -> HttpResponse:
        return self._say_what_was_saved(request, obj)

    def _say_what_was_saved(self, request: HttpRequest, config: Config) -> HttpResponse:
        changes = _difference(config, _version_before(config))
        shown = [f"{field} {_shown(before)} → {_shown(now)}" for field, before, now in changes[:_CHANGES_SHOWN]]
        more = f" and {len(changes) - _CHANGES_SHOWN} more" if len(changes) > _CHANGES_SHOWN else ""
        what = f"Saved as v{config.version} of {config.experiment}."
        if shown:
            what += f" Changed since v{config.version - 1}: {'; '.join(shown)}{more}."
        messages.success(request, what)
        return HttpResponseRedirect(change_url(config))

    @admin.action(description="Launch", permissions=["launch"])
    def launch(self, request: HttpRequest, queryset: QuerySet[Config]) -> HttpResponse | None:
        def act(config: Config) -> str:
            return launched(fleet.launch(config=config, user=request.user))  # type: ignore[arg-type]

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
        return format_html("<code>{}</code>", config.digest[:12])

    @admin.display(description="configuration")
    def configuration(self, config: Config) -> SafeString:
        return pretty(json.dumps(config.data, indent=2))

    @admin.display(description="sweep")
    def axes(self, config: Config) -> SafeString:
        return pretty(json.dumps(config.sweep, indent=2))


def launched(launch: services.Launch) -> str:
    """Say what a launch did, and what it could not do and why."""
    parts = [f"launched {len(launch.created)} {_plural('run', len(launch.created))}"]
    if launch.existing:
        parts.append(f"{launch.existing} {_plural('point', launch.existing)} had a run already")
    if launch.invalid:
        why = launch.invalid[0].problems[0]
        count = len(launch.invalid)
        parts.append(f"{count} {_plural('point', count)} cannot run: {point_label(launch.invalid[0].values)}: {why}")
    return "; ".join(parts)


def _change_context(config: Config) -> dict[str, Any]:
    """What the page of a config shows beside its form."""
    before = _version_before(config)
    rows, problems = _preview(config)
    return {
        "before": before,
        "changes": _difference(config, before),
        "points": rows[:_POINTS_SHOWN],
        "points_left_out": max(0, len(rows) - _POINTS_SHOWN),
        "points_impossible": sum(bool(row.problems) for row in rows),
        "sweep_problems": problems,
        "is_used": config.is_used,
    }


def _preview(config: Config) -> tuple[list[PointRow], list[str]]:
    try:
        points = [launchable(point) for point in config.points()]
    except ConfigError as error:
        return [], [str(problem) for problem in error.problems]
    runs = {run.point_digest: run for run in config.runs.select_related("experiment")}
    return [
        PointRow(
            point_label(point.values) or "the configuration itself",
            [str(problem) for problem in point.problems],
            runs.get(digest(point.values)),
        )
        for point in points
    ], []


def _version_before(config: Config) -> Config | None:
    return config.experiment.configs.filter(version__lt=config.version).order_by("-version").first()


def _difference(config: Config, before: Config | None) -> list[tuple[str, Any, Any]]:
    if before is None:
        return []
    return [(field, old, new) for field, (old, new) in difference(_flat(before), _flat(config)).items()]


def _flat(config: Config) -> dict[str, Any]:
    """All fields and the sweep; what was stored by an older parlab may lack some or have others."""
    try:
        data = complete(config.data)
    except ConfigError:
        data = config.data
    return {**data, "sweep": config.sweep}


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
