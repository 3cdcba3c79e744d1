"""The note, tags and star of one run; comments on experiments and findings."""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from parlab.lab.models import Comment, Experiment, Finding
from parlab.lab.services import marks as marks_services
from parlab.lab.services.marks import comment_add, run_note_save, runs_star, runs_tag, runs_unstar, runs_untag
from parlab.lab.services.pages import starred
from parlab.pages.views.runs.addressed import find_run
from parlab.whole_numbers import whole_number


@require_POST
@permission_required("lab.add_star", raise_exception=True)
def star(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Star a run, or remove the user's star."""
    run, user = find_run(slug, number), cast(User, request.user)
    if not runs_star(runs=[run], user=user):
        runs_unstar(runs=[run], user=user)
    return redirect(run)


@require_POST
def experiment_star(request: HttpRequest, slug: str) -> HttpResponse:
    """Star an experiment for the person, or remove the star; each person has their own."""
    experiment = get_object_or_404(Experiment, slug=slug)
    starred.experiment_star(user=cast(User, request.user), experiment=experiment)
    return _back(request, experiment)


@require_POST
@permission_required("lab.change_runnote", raise_exception=True)
def note(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Store the note of a run."""
    run = find_run(slug, number)
    try:
        run_note_save(run=run, text=request.POST.get("text", ""), user=cast(User, request.user))
    except ValueError as error:
        messages.error(request, f"The note was not saved: {error}.")
    return redirect(f"{run.get_absolute_url()}#note")


@require_POST
@permission_required("lab.add_tagofrun", raise_exception=True)
def tags(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Add a tag to a run, or remove one."""
    run = find_run(slug, number)
    try:
        if name := request.POST.get("remove", ""):
            runs_untag(runs=[run], name=name)
        else:
            runs_tag(runs=[run], name=request.POST.get("tag", ""))
    except ValueError as error:
        messages.error(request, f"The tags were not changed: {error}.")
    return redirect(run)


@require_POST
@permission_required("lab.add_comment", raise_exception=True)
def comment(request: HttpRequest, slug: str) -> HttpResponse:
    """Add a comment to an experiment, or with `finding` to one of its findings."""
    experiment = get_object_or_404(Experiment, slug=slug)
    pk = whole_number(request.POST.get("finding", ""))
    finding = get_object_or_404(Finding, pk=pk, experiment=experiment) if pk is not None else None
    text = request.POST.get("text", "")
    try:
        added = comment_add(experiment=experiment, text=text, user=cast(User, request.user), finding=finding)
    except ValueError as error:
        messages.error(request, f"The comment was not added: {error}.")
        return _back(request, experiment, "comments")
    return _back(request, experiment, f"comment-{added.pk}")


@require_POST
def comment_edit(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """Replace the text of one's own comment."""
    edited = _comment(slug, pk)
    if not edited.may_change(request.user):
        raise PermissionDenied("only its author can edit a comment")
    try:
        marks_services.comment_edit(comment=edited, text=request.POST.get("text", ""))
    except ValueError as error:
        messages.error(request, f"The comment was not changed: {error}.")
    return _back(request, edited.experiment, f"comment-{edited.pk}")


@require_POST
def comment_delete(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """Delete one's own comment."""
    deleted = _comment(slug, pk)
    if not deleted.may_delete(request.user):
        raise PermissionDenied("only its author can delete a comment")
    deleted.delete()
    messages.success(request, "Comment deleted.")
    return _back(request, deleted.experiment, "comments")


def _comment(slug: str, pk: int) -> Comment:
    return get_object_or_404(Comment.objects.select_related("experiment"), pk=pk, experiment__slug=slug)


def _back(request: HttpRequest, experiment: Experiment, place: str = "") -> HttpResponseRedirect:
    """Redirect to the page of the form, if it is on this site."""
    target = request.POST.get("next", "").partition("#")[0]
    if not url_has_allowed_host_and_scheme(target, {request.get_host()}, require_https=request.is_secure()):
        target = experiment.get_absolute_url()
    return HttpResponseRedirect(f"{target}#{place}" if place else target)
