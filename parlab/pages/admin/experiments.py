"""The admin of experiments."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db.models import Count, Model, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from parlab.ingest.batches import deletion
from parlab.lab.models import Config, Experiment, Finding, Run, Snapshot, Source
from parlab.lab.models.access.viewer import home_project_id
from parlab.lab.services.experiments import experiment_clone, experiment_create, experiment_delete

from .acting import CreatedBy, act_on_each, back, buttons, link

_DELETED_MODELS: dict[str, type[Model]] = {
    "configuration versions": Config,
    "runs with their logs and series": Run,
    "snapshots and pictures": Snapshot,
    "imported files": Source,
    "findings": Finding,
}
"""Rows that are deleted with an experiment: description -> model."""


class ConfigInline(CreatedBy, admin.TabularInline[Config, Experiment]):
    """The configuration versions of an experiment, each with a link to its form."""

    model = Config
    fields = readonly_fields = ("version_link", "note", "run_count", "creator", "created_at")
    extra = 0
    can_delete = False
    verbose_name_plural = "Config versions"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Config]:
        configs = super().get_queryset(request).select_related("created_by", "experiment")
        return configs.annotate(runs_made=Count("runs"))

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.display(description="version")
    def version_link(self, config: Config) -> SafeString:
        return link(config, f"v{config.version}")

    @admin.display(description="runs")
    def run_count(self, config: Config) -> int:
        return int(getattr(config, "runs_made", 0))


class ExperimentForm(forms.ModelForm[Experiment]):
    """The fields of an experiment; its name is unique within its project, which is not a field."""

    class Meta:
        model = Experiment
        fields = ("name", "question", "notes", "source", "owner")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        owner: Any = self.fields.get("owner")
        if owner is not None:
            # Names of service accounts name their projects, which not everybody sees.
            owner.queryset = User.objects.filter(Q(service_account=None) | Q(pk=self.instance.owner_id))

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        project = self.instance.project_id if self.instance.pk else home_project_id()
        if Experiment.objects.filter(project=project, name=name).exclude(pk=self.instance.pk).exists():
            raise ValidationError("Experiment with this Name already exists.", code="unique")
        return name


@admin.register(Experiment)
class ExperimentAdmin(admin.ModelAdmin[Experiment]):
    form = ExperimentForm
    list_display = ("name", "page", "owner", "config_count", "run_count", "created_at")
    list_filter = (("owner", admin.RelatedOnlyFieldListFilter), "created_at")
    list_select_related = ("owner",)
    search_fields = ("name", "question", "notes", "slug")
    fields = ("name", "question", "notes", "source", "owner", "slug", "created_at", "updated_at")
    readonly_fields = ("slug", "created_at", "updated_at")
    change_form_template = "admin/lab/change_form.html"
    inlines = (ConfigInline,)
    actions = ("clone",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Experiment]:
        # Two joined counts would multiply each other.
        return super().get_queryset(request).annotate(configs_made=_count_of(Config), runs_made=_count_of(Run))

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"owner": request.user.pk, **super().get_changeform_initial_data(request)}

    def get_view_on_site_url(self, obj: Experiment | None = None) -> str | None:
        return obj.get_absolute_url() if obj is not None else None

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = (extra_context or {}) | buttons(self, request, "clone")
        return super().change_view(request, object_id, form_url, context)

    def get_deleted_objects(
        self, objs: QuerySet[Experiment] | Sequence[Experiment], request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        # Count the related rows instead of listing them: an experiment may have thousands of runs, each with snapshots.
        active = Run.everything.active().filter(experiment__in=objs).select_related("experiment")
        counts = {
            name: model._default_manager.filter(experiment__in=objs).count() for name, model in _DELETED_MODELS.items()
        }
        blocking = [f"{run} is {run.state}; cancel it first" for run in active]
        names = [str(experiment) for experiment in objs]
        return names, {name: count for name, count in counts.items() if count}, set(), blocking

    def delete_model(self, request: HttpRequest, obj: Experiment) -> None:
        experiment_delete(experiment=obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Experiment]) -> None:
        for experiment in queryset:
            deletion.experiment_delete(experiment=experiment)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # The admin deletes in one transaction, in which others would wait for millions of points.
        experiment = self.get_object(request, unquote(object_id)) if request.POST else None
        if experiment is not None and self.has_delete_permission(request, experiment):
            with suppress(ValueError):  # the page says which run is active
                deletion.experiment_empty(experiment=experiment)
        return _refused(request, lambda: super(ExperimentAdmin, self).delete_view(request, object_id, extra_context))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return _refused(request, lambda: super(ExperimentAdmin, self).changelist_view(request, extra_context))

    def save_model(self, request: HttpRequest, obj: Experiment, form: Any, change: bool) -> None:
        if change:
            super().save_model(request, obj, form, change)
            return
        created = experiment_create(
            name=obj.name, question=obj.question, notes=obj.notes, owner=obj.owner, source=obj.source
        )
        obj.pk = created.pk
        obj.refresh_from_db()

    @admin.action(description="Clone", permissions=["add"])
    def clone(self, request: HttpRequest, queryset: QuerySet[Experiment]) -> HttpResponse | None:
        def act(experiment: Experiment) -> str:
            clone = experiment_clone(experiment=experiment, user=request.user)  # type: ignore[arg-type]
            return format_html("cloned as {}, with its latest configuration and without runs", link(clone))

        act_on_each(request, queryset, act)
        return back(request, queryset)

    @admin.display(description="page")
    def page(self, experiment: Experiment) -> SafeString:
        return format_html('<a href="{}">open</a>', experiment.get_absolute_url())

    @admin.display(description="configs", ordering="configs_made")
    def config_count(self, experiment: Experiment) -> int:
        return int(getattr(experiment, "configs_made", 0))

    @admin.display(description="runs", ordering="runs_made")
    def run_count(self, experiment: Experiment) -> int:
        return int(getattr(experiment, "runs_made", 0))


def _count_of(model: type[Config] | type[Run]) -> Any:
    related = model._default_manager.filter(experiment=OuterRef("pk")).order_by().values("experiment")
    return Coalesce(Subquery(related.annotate(count=Count("pk")).values("count")), 0)


def _refused(request: HttpRequest, act: Callable[[], HttpResponse]) -> HttpResponse:
    """Carry out a deletion; a run that has become active since the page asked is named instead."""
    try:
        return act()
    except ValueError as problem:
        messages.error(request, f"Nothing was deleted: {problem}.")
        return HttpResponseRedirect(reverse("admin:lab_experiment_changelist"))
