"""The admin of configurations: a form with a check, a preview of the sweep, and presets."""

import json
from collections.abc import Sequence
from math import prod
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, QuerySet
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    JsonResponse,
)
from django.template.loader import render_to_string
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from parlab.fleet import services as fleet
from parlab.lab.forms.forms import ConfigForm, fieldsets, form_values, typed_values
from parlab.lab.forms.presets import PRESETS
from parlab.lab.models import Config
from parlab.lab.services.configs import config_save
from parlab.lab.services.runs import Launch, point_label
from parlab.pages.forms.sweep_preview import changes_between, saved_preview, typed_preview, version_before

from .acting import act_on_each, back, buttons, change_url, pretty

_CHANGES_SHOWN = 5


@admin.register(Config)
class ConfigAdmin(admin.ModelAdmin[Config]):
    """Edit a Config as the fields of its RunConfig; saving a used version creates the next one."""

    list_display = ("__str__", "note", "point_count", "run_count", "created_by", "created_at", "short_digest")
    list_filter = (("experiment", admin.RelatedOnlyFieldListFilter), "created_at")
    list_select_related = ("experiment", "created_by")
    search_fields = ("experiment__name", "note", "digest")
    change_form_template = "admin/lab/config/change_form.html"
    actions = ("launch",)
    _read_only_fields = ("experiment", "note", "configuration", "axes")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Config]:
        return super().get_queryset(request).annotate(runs_made=Count("runs"))

    def get_form(self, request: HttpRequest, obj: Config | None = None, change: bool = False, **kwargs: Any) -> Any:
        return ConfigForm

    def get_fieldsets(self, request: HttpRequest, obj: Config | None = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return [(None, {"fields": self._read_only_fields})]
        return fieldsets()

    def get_readonly_fields(self, request: HttpRequest, obj: Config | None = None) -> Any:
        return self._read_only_fields if obj is not None and not self.has_change_permission(request, obj) else ()

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

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        context = {"show_save_and_add_another": False, "show_save_and_continue": False, **(extra_context or {})}
        config = self.get_object(request, object_id) if object_id else None
        context |= {"presets": _preset_groups(), "checked_at": reverse("admin:lab_config_check")}
        if config is not None:
            before = version_before(config)
            context |= {
                "before": before,
                "changes": changes_between(before, config.data, config.sweep),
                "preview": saved_preview(config),
                "is_used": config.is_used,
            } | buttons(self, request, "launch")
        return super().changeform_view(request, object_id, form_url, context)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Fill a new configuration with the values of `?preset=`."""
        initial = super().get_changeform_initial_data(request)
        preset = PRESETS.get(str(initial.pop("preset", "")))
        return initial | (typed_values(preset.data, preset.sweep) if preset else {})

    def get_urls(self) -> list[URLPattern]:
        own = [
            path("check/", self.admin_site.admin_view(self.check_view), name="lab_config_check"),
            path("presets/<slug:key>/", self.admin_site.admin_view(self.preset_view), name="lab_config_preset"),
        ]
        return own + super().get_urls()

    def check_view(self, request: HttpRequest) -> HttpResponse:
        """Return errors and a preview of the values in the form, without saving anything."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_add_permission(request) or self.has_change_permission(request)):
            raise PermissionDenied
        number = request.GET.get("config", "")
        config = self.get_object(request, number) if number.isdecimal() else None
        form = ConfigForm(request.POST, instance=config)
        form.fields["experiment"].required = False
        form.is_valid()
        preview = typed_preview(form)
        context = {
            "preview": preview,
            "against": config,
            "changes": changes_between(config, form.data_of_config, form.cleaned_data["sweep"]) if preview else [],
            "is_typed": True,
        }
        return JsonResponse(
            {
                "errors": {name: list(errors) for name, errors in form.errors.items()},
                "unused": sorted(form.unused),
                "preview": render_to_string("admin/lab/config/preview.html", context, request),
                "changes": render_to_string("admin/lab/config/changes.html", context, request),
            }
        )

    def preset_view(self, request: HttpRequest, key: str) -> HttpResponse:
        """Return the form values of a preset."""
        if key not in PRESETS:
            raise Http404(f"unknown preset {key}; use {', '.join(PRESETS)}")
        return JsonResponse(form_values(PRESETS[key].data, PRESETS[key].sweep))

    def save_model(self, request: HttpRequest, obj: Config, form: Any, change: bool) -> None:
        # "Add", a save after a conflict, and one a moment after the check must not overwrite what nobody has seen.
        latest = obj.experiment.configs.order_by("-version").values_list("pk", "digest").first()
        is_seen = change and latest == (obj.pk, form.cleaned_data["seen_digest"])
        saved = config_save(
            experiment=obj.experiment,
            data=form.data_of_config,
            sweep=form.cleaned_data["sweep"],
            note=form.cleaned_data["note"],
            user=request.user,  # type: ignore[arg-type]
            as_next=not is_seen,
        )
        obj.pk = saved.pk
        obj.refresh_from_db()

    def response_add(self, request: HttpRequest, obj: Config, post_url_continue: str | None = None) -> HttpResponse:
        return self._saved_response(request, obj)

    def response_change(self, request: HttpRequest, obj: Config) -> HttpResponse:
        return self._saved_response(request, obj)

    def _saved_response(self, request: HttpRequest, config: Config) -> HttpResponse:
        changes = changes_between(version_before(config), config.data, config.sweep)
        texts = [f"{field} {_value_text(old)} → {_value_text(new)}" for field, old, new in changes[:_CHANGES_SHOWN]]
        more = f" and {len(changes) - _CHANGES_SHOWN} more" if len(changes) > _CHANGES_SHOWN else ""
        message = f"Saved as v{config.version} of {config.experiment}."
        if texts:
            message += f" Changed since v{config.version - 1}: {'; '.join(texts)}{more}."
        messages.success(request, message)
        return HttpResponseRedirect(change_url(config))

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


def _preset_groups() -> list[tuple[str, list[tuple[str, str]]]]:
    groups: dict[str, list[tuple[str, str]]] = {}
    for key, preset in PRESETS.items():
        groups.setdefault(preset.group, []).append((key, preset.title))
    return list(groups.items())


def launch_sentence(launch: Launch) -> str:
    """Describe the result of a launch, including points that cannot run."""
    parts = [f"launched {len(launch.created)} {_plural('run', len(launch.created))}"]
    if launch.approval is not None:
        parts.append(f"{launch.approval.gpu_hours:.3g} GPU hours wait for the approval of a maintainer")
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


def _value_text(value: Any) -> str:
    return "unset" if value is None else str(value)
