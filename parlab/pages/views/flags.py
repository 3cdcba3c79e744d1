"""What was pasted, read into the fields of a configuration's form."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_POST

from parlab.pages import pasted
from runners.config import ConfigError


@require_POST
def read_flags(request: HttpRequest) -> HttpResponse:
    """Answer with the form's values for a pasted command line or configuration; stores nothing."""
    if not (request.user.has_perm("lab.add_config") or request.user.has_perm("lab.change_config")):
        raise PermissionDenied
    try:
        found = pasted.read(request.POST.get("flags", ""))
    except (ConfigError, ValueError) as error:
        return JsonResponse({"said": f"Nothing was read: {error}."}, status=400)
    return JsonResponse({"values": found.values, "said": found.said})
