"""Fill the configuration form from pasted text."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_POST

from parlab.ingest import pasted_config as pasted
from runners.config import ConfigError


@require_POST
def read_flags(request: HttpRequest) -> HttpResponse:
    """Return form values for a pasted command line or configuration. Stores nothing."""
    if not (request.user.has_perm("lab.add_config") or request.user.has_perm("lab.change_config")):
        raise PermissionDenied
    try:
        reading = pasted.read(request.POST.get("flags", ""))
    except (ConfigError, ValueError) as error:
        return JsonResponse({"said": f"Nothing was read: {error}."}, status=400)
    return JsonResponse({"values": reading.values, "said": reading.summary})
