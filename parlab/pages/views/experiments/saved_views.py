"""Save, open and delete named views of pages."""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from parlab.lab.models import SavedView
from parlab.lab.services.access.rights import require_change
from parlab.lab.services.pages.saved_views import view_save


@require_POST
@permission_required("pages.add_savedview", raise_exception=True)
def save(request: HttpRequest) -> HttpResponse:
    """Save the address of the page that the form was on, and return to it."""
    address = request.POST.get("address", "")
    try:
        view = view_save(
            name=request.POST.get("name", ""),
            address=address,
            is_default="default" in request.POST,
            user=cast(User, request.user),
        )
    except ValueError as error:
        messages.error(request, f"Not saved: {error}.")
        is_here = url_has_allowed_host_and_scheme(address, {request.get_host()}, require_https=request.is_secure())
        return HttpResponseRedirect(address) if is_here else redirect("experiments")
    messages.success(request, f"Saved the view {view.name}{', the default of this page' if view.is_default else ''}.")
    return redirect(view.address)


@require_GET
def open_view(_request: HttpRequest, pk: int) -> HttpResponse:
    """Open a view by its short address."""
    return redirect(get_object_or_404(SavedView, pk=pk).address)


@require_POST
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    view = get_object_or_404(SavedView, pk=pk)
    require_change(request.user, view)
    view.delete()
    messages.success(request, f"Deleted the view {view.name}.")
    return redirect(f"{view.path}?plain=1")
