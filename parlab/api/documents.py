"""The OpenAPI document, made once for each installed code, and the page that shows it."""

from __future__ import annotations

import functools
import hashlib
import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required, login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiYamlRenderer
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.views import APIView

_TYPES = {"json": "application/vnd.oai.openapi+json", "yaml": "application/vnd.oai.openapi"}


@functools.cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document; making it takes seconds, so that it is kept in the data directory."""
    path = settings.DATA_DIR / f"openapi-{_code()}.json"
    with suppress(OSError, ValueError):
        kept: dict[str, Any] = json.loads(path.read_bytes())
        return kept
    generator: Any = SchemaGenerator()  # type: ignore[no-untyped-call]  # drf-spectacular has no types
    made: dict[str, Any] = json.loads(json.dumps(generator.get_schema(request=None, public=True)))
    with suppress(OSError):  # a full or read-only disk: each process makes its own
        draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
        draft.write_text(json.dumps(made))
        for earlier in settings.DATA_DIR.glob("openapi-*.json"):
            earlier.unlink(missing_ok=True)
        draft.replace(path)
    return made


def _code() -> str:
    """Return what differs between two installations: names, sizes and times of the files of code."""
    root = Path(__file__).resolve().parents[1]
    files = [(path, path.stat()) for path in sorted(root.rglob("*.py"))]
    facts = [f"{path.relative_to(root)} {stat.st_size} {stat.st_mtime_ns}" for path, stat in files]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


@functools.cache
def _written(form: str) -> bytes:
    if form == "json":
        return json.dumps(document()).encode()
    renderer: Any = OpenApiYamlRenderer()
    content: bytes = renderer.render(document(), renderer_context={})
    return content


class Schema(APIView):
    """The OpenAPI document."""

    permission_classes = [IsAuthenticated]

    @extend_schema(exclude=True, parameters=[OpenApiParameter("format", OpenApiTypes.STR, enum=list(_TYPES))])
    def get(self, request: Request) -> HttpResponse:
        form = request.GET.get("format", "") or ("json" if "json" in request.headers.get("Accept", "") else "yaml")
        form = form if form in _TYPES else "yaml"
        headers = {"Content-Disposition": f'inline; filename="parlab.{form}"'}
        return HttpResponse(_written(form), content_type=_TYPES[form], headers=headers)


@login_not_required
def root(request: HttpRequest) -> HttpResponse:
    """Show the document to a browser; a script gets the document itself."""
    if "text/html" not in request.headers.get("Accept", ""):
        return redirect("api:schema")
    return _page(request)


@login_required
def _page(request: HttpRequest) -> HttpResponse:
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, item in document()["paths"].items():
        for method, operation in item.items():
            group = path.removeprefix("/api/").partition("/")[0]
            groups.setdefault(group, []).append(_row(path, method, operation))
    return render(request, "pages/account/api.html", {"groups": groups, "section": "api"})


def _row(path: str, method: str, operation: dict[str, Any]) -> dict[str, Any]:
    body = operation.get("requestBody", {}).get("content", {})
    return {
        "path": path,
        "method": method.upper(),
        "text": operation.get("description", ""),
        "parameters": [each for each in operation.get("parameters", []) if each["in"] == "query"],
        "fields": [field for content in list(body.values())[:1] for field in _fields(content.get("schema", {}))],
        "statuses": sorted(operation["responses"]),
    }


def _fields(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of a body: name, type, whether it is required, description."""
    if "$ref" in schema:
        schema = document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "type": field.get("type", "") if isinstance(field.get("type"), str) else "",
            "is_required": name in required,
            "text": field.get("description", ""),
        }
        for name, field in schema.get("properties", {}).items()
    ]
