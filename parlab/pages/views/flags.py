"""A command line, read into the fields of a configuration's form."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_POST

from parlab.lab.forms import form_values
from parlab.pages.flags import config_of_command
from runners.config import ConfigError, check


@require_POST
def read_flags(request: HttpRequest) -> HttpResponse:
    """Answer with the form's values for a pasted command line; stores nothing."""
    if not (request.user.has_perm("lab.add_config") or request.user.has_perm("lab.change_config")):
        raise PermissionDenied
    try:
        found = config_of_command(request.POST.get("flags", ""))
        values = form_values(found.data, {})
    except (ConfigError, ValueError) as error:
        return JsonResponse({"said": f"Nothing was read: {error}."}, status=400)
    config, problems = check(found.data)
    said = f"Read into {sum(map(len, found.data.values()))} fields; the number of iterations is left to you."
    if config is not None:
        said += f" The layout has {config.world_size} {'rank' if config.world_size == 1 else 'ranks'}."
    elif problems:
        said += f" What does not fit yet: {problems[0].message}."
    if found.unread:
        said += f" Without effect here: {', '.join(found.unread)}."
    return JsonResponse({"values": values, "said": said})
