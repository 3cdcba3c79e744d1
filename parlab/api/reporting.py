"""The protocol by which scripts report, in the OpenAPI document: its views are none of the REST framework."""

from __future__ import annotations

from typing import Any

from parlab.tracking.stream_views import MAX_BODY_BYTES
from parlab.tracking.streams import Opening

_TAG = "runs"
_OPENING = {"$ref": "#/components/schemas/StreamOpening"}
_COMMITTED = {"type": "integer", "description": "Bytes of the spool that are stored."}
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_RECORDS = (
    "Records between two positions of a spool, at most "
    f"{MAX_BODY_BYTES >> 20} MiB: each is `pl`, a kind (1 output, 2 report), the length of the payload (4 bytes), the"
    " CRC-32 of kind, length and payload (4 bytes), the payload; in network byte order. A report is a JSON object with"
    " its `kind`: end, config, tags, summary, environment. `Content-Encoding: deflate` is allowed."
)


def add_protocol(result: dict[str, Any], **_options: Any) -> dict[str, Any]:
    """Add the requests with which a client opens a stream, sends batches, and stores files."""
    opening = Opening.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = result["components"]["schemas"]
    schemas |= {name: schema for name, schema in opening.pop("$defs", {}).items() if name not in schemas}
    schemas["StreamOpening"] = {**opening, "description": "How a client describes what one process reports."}
    run = _parameter("run", "ID of the run, which the client chooses: letters, digits, `.`, `_`, `:` and `-`.")
    stream = _parameter("stream", "ID of the stream, which the client chooses: letters, digits and `-`.")
    result["paths"]["/api/runs/{run}/streams/{stream}/"] = {
        "put": {
            "operationId": "streams_open",
            "description": "Open a stream, new or as it is; creates experiment and run. Report to the run of the"
            " answer: ranks of one launch get into the run of the first.",
            "parameters": [run, stream],
            "requestBody": {"content": {"application/json": {"schema": _OPENING}}},
            "responses": {"200": _answer(run=_object(id={}, experiment={}, number={}, url={}), committed=_COMMITTED),
                          "409": _refused(_CONFLICT)},
        },
        "post": {
            "operationId": "streams_append",
            "description": "Store a batch if it begins at the committed position; any other one changes nothing.",
            "parameters": [run, stream, *(_parameter(name, text, "query", "integer") for name, text in _POSITIONS)],
            "requestBody": {"description": _RECORDS, "content": _BINARY},
            "responses": {"200": _answer(committed=_COMMITTED)},
        },
        "get": {
            "operationId": "streams_read",
            "description": "The committed position and the state of a stream.",
            "parameters": [run, stream],
            "responses": {"200": _answer(committed=_COMMITTED, state={"type": "string"}),
                          "400": _refused("The ID of a run or stream has a character that none may have.")},
        },
    }  # fmt: skip
    result["paths"]["/api/artifacts/{run}/{path}"] = {
        "put": {
            "operationId": "artifacts_store",
            "description": "Store a file of a run, in place of an earlier one of its path.",
            "parameters": [run, _parameter("path", "Relative path.")],
            "requestBody": {"content": _BINARY},
            "responses": {"200": _answer(path={"type": "string"}, size={"type": "integer"}, sha256={"type": "string"})},
        }
    }
    for path in ("/api/runs/{run}/streams/{stream}/", "/api/artifacts/{run}/{path}"):
        for operation in result["paths"][path].values():
            operation |= {"tags": [_TAG], "security": [{"tokenAuth": []}]}
    result["paths"] = dict(sorted(result["paths"].items()))
    return result


_CONFLICT = "Another process reports as this rank, or it shows within a minute whether one still does."
_POSITIONS = (("position", "First byte of the batch."), ("next", "Byte after the batch."))


def _parameter(name: str, text: str, place: str = "path", kind: str = "string") -> dict[str, Any]:
    return {"name": name, "in": place, "required": True, "description": text, "schema": {"type": kind}}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _answer(**properties: Any) -> dict[str, Any]:
    return {"description": "Done.", "content": {"application/json": {"schema": _object(**properties)}}}


def _refused(text: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Errors"}
    return {"description": text, "content": {"application/json": {"schema": schema}}}
