"""JSON request bodies -> pydantic models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from rest_framework.request import Request

from .errors import Problem, Problems

M = TypeVar("M", bound=BaseModel)


class Body(NamedTuple):
    """How to read a request body; errors quote the `example` and refer to `page`."""

    refusals: Callable[[ValidationError], Iterable[Any]]
    """Converts a validation error to (field, value, message) tuples."""
    example: str
    page: str

    def read(self, model: type[M], request: Request, context: dict[str, Any] | None = None) -> M:
        """Return the body as `model`, validated with `context`.

        Raises Problem or Problems, which become a response with status 400.
        """
        data: Any = request.data
        if not isinstance(data, dict):
            raise Problem(
                "the body is not a JSON object",
                field="body",
                value=data,
                remedy=f"send for example {self.example}, or {{}}",
            )
        try:
            return model.model_validate(data, context=context)
        except ValidationError as error:
            raise Problems(
                [refusal._asdict() for refusal in self.refusals(error)], remedy=f"see {self.page}"
            ) from error
