"""What actions on lists and buttons on an object's page share: both are the same POST."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

M = TypeVar("M", bound=Model)

_PRETTY_LIMIT = 100_000


def act_on_each(request: HttpRequest, objects: Iterable[M], act: Callable[[M], str]) -> None:
    """Do something to each object and say what happened to it, also where it was refused."""
    for thing in objects:
        try:
            messages.success(request, format_html("{}: {}", thing, act(thing)))
        except ValueError as error:
            messages.error(request, f"{thing}: {error}")


def confirmation(
    model_admin: admin.ModelAdmin[M],
    request: HttpRequest,
    queryset: QuerySet[M],
    *,
    action: str,
    question: str,
    yes: str,
) -> HttpResponse | None:
    """Ask before an action that cannot be taken back; None once the person has said yes."""
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
    """Return to the page of the object whose button was pressed, else to the list."""
    return HttpResponseRedirect(_change_url(queryset)) if request.POST.get("from_object") else None


def buttons(model_admin: admin.ModelAdmin[Any], request: HttpRequest, *names: str) -> dict[str, Any]:
    """Context that shows actions as buttons on an object's page, as far as the person may use them."""
    allowed = {action[1]: action[2] for action in model_admin.get_actions(request).values() if action}
    shown = [(name, allowed[name]) for name in names if name in allowed]
    return {"object_actions": shown, "checkbox": ACTION_CHECKBOX_NAME}


def change_url(thing: Model) -> str:
    meta = thing._meta
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[thing.pk])


class MadeBy:
    """Names who made something; the administration's own field links to a person that not everybody may look at."""

    @admin.display(description="created by")
    def made_by(self, made: Any) -> str:
        return str(made.created_by or "")


class OnlyLookedAt:
    """Rows that parlab makes itself and nobody adds, changes or deletes by hand."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def link(thing: Model, text: str = "") -> SafeString:
    """Link to an object's page in the admin."""
    return format_html('<a href="{}">{}</a>', change_url(thing), text or str(thing))


def pretty(text: str) -> SafeString:
    """Show a longer text as it is."""
    cut = text if len(text) <= _PRETTY_LIMIT else text[:_PRETTY_LIMIT] + "\n..."
    return format_html('<pre class="code">{}</pre>', cut)


def _change_url(queryset: QuerySet[M]) -> str:
    return change_url(queryset.get())
