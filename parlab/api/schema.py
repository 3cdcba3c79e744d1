"""What the OpenAPI document says of every request: how it is refused."""

from __future__ import annotations

from typing import Any

_METHODS = ("get", "post", "put", "patch", "delete")
_REFUSED = {
    "400": "A value is missing or invalid.",
    "401": "No token, or an unknown, expired or revoked one.",
    "403": "The account has no permission, or the token not the scope.",
    "404": "There is no such entry.",
    "413": "The request is too large.",
    "415": "The media type of the body is not supported.",
}


def add_refusals(result: dict[str, Any], **_options: Any) -> dict[str, Any]:
    """Add the responses that every operation of the kind can have; all have the format of `errors.handle`."""
    for path, item in result["paths"].items():
        for method in _METHODS:
            operation = item.get(method)
            if operation is not None:
                for status in _statuses(path, operation):
                    operation["responses"].setdefault(status, _refusal(_REFUSED[status]))
    return result


def _statuses(path: str, operation: dict[str, Any]) -> list[str]:
    places = {parameter["in"] for parameter in operation.get("parameters", [])}
    names = {parameter["name"] for parameter in operation.get("parameters", [])}
    statuses = ["401", "403"]
    if "query" in places or "requestBody" in operation:
        statuses.append("400")
    if "{" in path or "page" in names:
        statuses.append("404")
    if "requestBody" in operation:
        statuses += ["413", "415"]
    return statuses


def _refusal(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Errors"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}
