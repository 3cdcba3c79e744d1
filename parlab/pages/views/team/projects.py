"""Projects: a list, the members and settings of one, which one the rail shows, and moving experiments."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from parlab.lab.models import SCOPE_TEXTS, Experiment, Project, Role
from parlab.lab.selectors.projects import accounts_with_tokens, seen_project, seen_projects
from parlab.lab.services.access import projects as services
from parlab.lab.services.access.budgets import budget_holder, budget_set
from parlab.lab.services.access.rights import may_manage, viewer_for
from parlab.pages.forms.token_choices import TOKEN_DAYS
from parlab.pages.requests.viewers import CHOSEN


@require_GET
@never_cache
def projects(request: HttpRequest) -> HttpResponse:
    viewer = viewer_for(request.user)
    rows = [(project, viewer.roles[project.pk].label) for project in seen_projects(viewer)]
    context = {"section": "projects", "rows": rows, "visibilities": Project.Visibility.choices}
    return render(request, "pages/account/projects.html", context)


@require_POST
@permission_required("lab.add_experiment", raise_exception=True)
def create(request: HttpRequest) -> HttpResponse:
    user = cast(User, request.user)
    try:
        made = services.project_create(
            name=request.POST.get("name", ""), visibility=request.POST.get("visibility", ""), user=user
        )
    except ValueError as problem:
        messages.error(request, f"Not created: {problem}.")
        return redirect("projects")
    return redirect(made)


@require_GET
@never_cache
def project(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the settings and members of a project, and to its maintainers the forms to change them."""
    return project_page(request, seen_project(viewer_for(request.user), slug))


def project_page(request: HttpRequest, shown: Project, *, status: int = 200, **more: Any) -> HttpResponse:
    manages = may_manage(request.user, shown)
    context: dict[str, Any] = {
        "section": "projects",
        "project": shown,
        "members": list(shown.memberships.select_related("user").filter(user__service_account=None)),
        "may_manage": manages,
        "may_budget": viewer_for(request.user).sees_all,
        "budget": budget_holder(shown.pk).approval_gpu_hours,
        "may_reserve": request.user.has_perm("lab.change_node"),
        "pools": ", ".join(shown.pools.values_list("pool", flat=True)),
        "roles": Role.choices,
        "visibilities": Project.Visibility.choices,
        "experiments": shown.experiments.count(),
        **more,
    }
    if manages:
        context |= {"scopes": SCOPE_TEXTS.items(), "days": TOKEN_DAYS, "accounts": accounts_with_tokens(shown)}
    return render(request, "pages/account/project.html", context, status=status)


def managed_project(request: HttpRequest, slug: str) -> Project:
    """Return a project that the user maintains; raises Http404, PermissionDenied."""
    managed = seen_project(viewer_for(request.user), slug)
    if not may_manage(request.user, managed):
        raise PermissionDenied(f"You are not a maintainer of project {managed}.")
    return managed


@require_POST
def change(request: HttpRequest, slug: str, action: str) -> HttpResponse:
    """Change the settings, the pools or a member of a project."""
    changed = managed_project(request, slug)
    if action not in _CHANGES:
        raise Http404(f"unknown action {action}; use one of {', '.join(_CHANGES)}")
    try:
        messages.success(request, _CHANGES[action](request, changed))
    except ValueError as problem:
        messages.error(request, f"Not changed: {problem}.")
    return redirect(changed)


def _settings(request: HttpRequest, changed: Project) -> str:
    name, visibility = request.POST.get("name", ""), request.POST.get("visibility", "")
    if "budget" in request.POST:
        budget_set(project=changed, hours=_budget(request.POST["budget"].strip()), user=request.user)
    services.project_change(project=changed, name=name, visibility=visibility)
    return "Saved."


def _budget(text: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        raise ValueError(f"GPU hours {text[:20]!r} are no number; enter one, or nothing") from None


def _pools(request: HttpRequest, changed: Project) -> str:
    if not request.user.has_perm("lab.change_node"):
        raise PermissionDenied("reserving pools needs the permission lab.change_node")
    pools = services.pools_set(project=changed, pools=request.POST.get("pools", "").split(","))
    return f"Only this project uses {', '.join(pools)}." if pools else "No pool is reserved for this project."


def _member(request: HttpRequest, changed: Project) -> str:
    services.member_set(project=changed, user=_person(request), role=request.POST.get("role", ""))
    return f"{_person(request)} is {request.POST['role']}."


def _remove(request: HttpRequest, changed: Project) -> str:
    services.member_remove(project=changed, user=_person(request))
    return f"{_person(request)} is no longer a member."


def _person(request: HttpRequest) -> User:
    name = request.POST.get("username", "").replace("\0", "").strip()
    person = User.objects.filter(username=name, is_active=True).first()
    if person is None:
        raise ValueError(f"user {name[:80]!r} is unknown; enter the name of an account")
    return person


_CHANGES = {"settings": _settings, "pools": _pools, "member": _member, "remove": _remove}


@require_POST
def choose(request: HttpRequest) -> HttpResponse:
    """Limit lists to one project, to which new experiments belong; without one, show all."""
    slug = request.POST.get("project", "")
    if slug:
        request.session[CHOSEN] = seen_project(viewer_for(request.user), slug).pk
    else:
        request.session.pop(CHOSEN, None)
    target = request.POST.get("next", "")
    is_here = url_has_allowed_host_and_scheme(target, {request.get_host()}, require_https=request.is_secure())
    return redirect(target if is_here else "home")


@require_POST
def move(request: HttpRequest, slug: str) -> HttpResponse:
    """Move an experiment to another project."""
    experiment = get_object_or_404(Experiment, slug=slug)
    target = seen_project(viewer_for(request.user), request.POST.get("project", ""))
    try:
        services.experiment_move(experiment=experiment, project=target, user=cast(User, request.user))
    except ValueError as problem:
        messages.error(request, f"Not moved: {problem}.")
    else:
        messages.success(request, f"Moved to project {target}.")
    return redirect(experiment)
