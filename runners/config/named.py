"""A field whose value is the name of a row of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema


class NameIn:
    """Accepts the names of a table as `Literal` would; the table is read at each validation."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self.names = names

    def _validated(self, value: Any) -> str:
        names = list(self.names())
        if isinstance(value, str) and value in names:
            return value
        *others, last = [repr(name) for name in names]
        expected = f"{', '.join(others)} or {last}" if others else last
        raise PydanticKnownError("literal_error", {"expected": expected})

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._validated, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"enum": list(self.names()), "type": "string"}
