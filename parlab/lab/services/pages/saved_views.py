"""Saved views: named addresses of lists, sweeps and comparisons, one of them the default of its page."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.db import transaction
from django.http import QueryDict
from django.urls import Resolver404, resolve

from parlab.lab.models import SavedView
from parlab.lab.services import storable

PAGES = ("experiments", "experiment", "experiment-table", "experiment-compare", "compare")
"""URL names of the pages whose views can be saved."""
PLAIN = "plain"
"""A parameter that opens a page without its default view."""
_LEFT_OUT = ("page", "seen", PLAIN)
MAX_QUERY = 4_000


@transaction.atomic
def view_save(*, name: str, address: str, is_default: bool, user: User) -> SavedView:
    """Save an address under a name; the same name of the same page is replaced, unless it belongs to another person."""
    name = storable.text(name).strip()[:80]
    if not name:
        raise ValueError("the view needs a name; enter one")
    path, _, text = address.partition("?")
    try:
        is_page = resolve(path).url_name in PAGES
    except Resolver404:
        is_page = False
    if not is_page:
        raise ValueError(f"{path[:80]} has no views; save a list, an experiment or a comparison")
    query = _query(text)
    earlier = SavedView.objects.filter(path=path, name=name).first()
    if earlier and earlier.owner_id != user.pk and not user.has_perm("pages.delete_savedview"):
        raise ValueError(f"the name {name} is taken by {earlier.owner.get_username()}; choose another")
    if is_default:
        SavedView.objects.filter(path=path, is_default=True).update(is_default=False)
    view, _ = SavedView.objects.update_or_create(
        path=path,
        name=name,
        defaults={"query": query, "is_default": is_default},
        create_defaults={"query": query, "is_default": is_default, "owner": user},
    )
    return view


def _query(text: str) -> str:
    parameters = QueryDict(storable.text(text)[: 2 * MAX_QUERY], mutable=True)
    for name in _LEFT_OUT:
        parameters.pop(name, None)
    query = parameters.urlencode()
    if len(query) > MAX_QUERY:
        raise ValueError(f"the address has {len(query)} characters; views may have up to {MAX_QUERY}")
    return query
