"""Shared parts of list actions and of the buttons on the page of an object; both send the same POST."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.decorators import staff_member_required
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

M = TypeVar("M", bound=Model)

_PRETTY_LIMIT = 100_000


def act_on_each(request: HttpRequest, objects: Iterable[M], act: Callable[[M], str]) -> None:
    """Apply an action to each object and show a message with its result or error."""
    for instance in objects:
        try:
            messages.success(request, format_html("{}: {}", instance, act(instance)))
        except ValueError as error:
            messages.error(request, f"{instance}: {error}")


def confirmation(
    model_admin: admin.ModelAdmin[M],
    request: HttpRequest,
    queryset: QuerySet[M],
    *,
    action: str,
    question: str,
    yes: str,
) -> HttpResponse | None:
    """Return a confirmation page for an irreversible action; None once the user has confirmed it."""
    if request.POST.get("confirmed"):
        return None
    context = {
        **model_admin.admin_site.each_context(request),
        "title": question,
        "opts": model_admin.model._meta,
        "objects": queryset,
        "action": action,
        "yes": yes,
        "checkbox": ACTION_CHECKBOX_NAME,
        "from_object": request.POST.get("from_object", ""),
        "back": _change_url(queryset) if request.POST.get("from_object") else request.get_full_path(),
    }
    return TemplateResponse(request, "admin/lab/confirm.html", context)


def back(request: HttpRequest, queryset: QuerySet[M]) -> HttpResponse | None:
    """Redirect to the object whose button was pressed; None redirects to the list."""
    return HttpResponseRedirect(_change_url(queryset)) if request.POST.get("from_object") else None


def buttons(model_admin: admin.ModelAdmin[Any], request: HttpRequest, *names: str) -> dict[str, Any]:
    """Return the template context that shows permitted actions as buttons on the page of an object."""
    allowed = {action[1]: action[2] for action in model_admin.get_actions(request).values() if action}
    permitted = [(name, allowed[name]) for name in names if name in allowed]
    return {"object_actions": permitted, "checkbox": ACTION_CHECKBOX_NAME}


def change_url(instance: Model) -> str:
    meta = instance._meta
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[instance.pk])


class CreatedBy:
    """Show the creator of an object as text: the default field links to a user that not everybody may view."""

    @admin.display(description="created by")
    def creator(self, instance: Any) -> str:
        return str(instance.created_by or "")


class ReadOnly:
    """Deny adding, changing and deleting rows that only parlab itself writes."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def link(instance: Model, text: str = "") -> SafeString:
    """Return a link to the page of an object in the admin."""
    return format_html('<a href="{}">{}</a>', change_url(instance), text or str(instance))


def pretty(text: str) -> SafeString:
    """Return a long text as preformatted HTML, cut at a limit."""
    visible = text if len(text) <= _PRETTY_LIMIT else text[:_PRETTY_LIMIT] + "\n..."
    return format_html('<pre class="code">{}</pre>', visible)


def _change_url(queryset: QuerySet[M]) -> str:
    return change_url(queryset.get())


@staff_member_required(login_url="admin:login")  # type: ignore[untyped-decorator]
def view_on_site(_request: HttpRequest, content_type_id: int, object_id: str) -> HttpResponseRedirect:
    """Lead to the page of a row that the person sees; Django's own view leads to every row."""
    model = get_object_or_404(ContentType, pk=content_type_id).model_class()
    try:
        row: Any = None if model is None else get_object_or_404(model._default_manager.all(), pk=object_id)
    except (ValueError, ValidationError):
        row = None
    if not hasattr(row, "get_absolute_url"):
        raise Http404("no such page")
    return HttpResponseRedirect(row.get_absolute_url())
