"""The buttons of an experiment: launch, clone, download as Markdown."""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from parlab.fleet import services as fleet
from parlab.lab.models import Config, Experiment
from parlab.lab.services.experiments import experiment_clone
from parlab.pages.rows.reports import experiment_report
from parlab.reports.markdown import markdown
from runners.config import ConfigError


@require_GET
def report(_request: HttpRequest, slug: str) -> HttpResponse:
    """Return the experiment as a Markdown document."""
    reported = get_object_or_404(Experiment, slug=slug)
    response = HttpResponse(markdown(experiment_report(reported)), content_type="text/markdown; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{reported.slug}.md"'
    return response


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def launch(request: HttpRequest, slug: str, version: int) -> HttpResponse:
    config = get_object_or_404(Config.objects.select_related("experiment"), experiment__slug=slug, version=version)
    back = _to_version(config)
    config.digest = request.POST.get("digest", "")
    try:
        result = fleet.launch(config=config, user=cast(User, request.user))
    except (ConfigError, ValueError) as error:
        messages.error(request, f"Nothing was launched: {error}.")
        return back
    started = len(result.created)
    if started:
        messages.success(request, f"Launched {started} {'run' if started == 1 else 'runs'}.")
    if result.approval is not None:
        messages.info(
            request, f"They are beyond the budget: {result.approval.amount} wait for the approval of a maintainer."
        )
    if result.restored:
        restored = f"{result.restored} {'run' if result.restored == 1 else 'runs'}"
        messages.success(
            request, f"Took {restored} of these points out of the archive; relaunch them to measure again."
        )
    if not started and not result.restored:
        messages.info(request, "Nothing was launched: every point that can run already has a run.")
    return back


def _to_version(config: Config) -> HttpResponseRedirect:
    newest = config.experiment.configs.order_by("-version").values_list("version", flat=True).first()
    url = reverse("experiment", args=[config.experiment.slug])
    return HttpResponseRedirect(url if config.version == newest else f"{url}?version={config.version}")


@require_POST
@permission_required("lab.add_experiment", raise_exception=True)
def clone(request: HttpRequest, slug: str) -> HttpResponse:
    original = get_object_or_404(Experiment, slug=slug)
    copy = experiment_clone(experiment=original, user=cast(User, request.user))
    messages.success(request, f"Cloned {original.name}: its newest configuration, without runs.")
    return redirect(copy)
