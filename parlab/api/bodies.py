"""JSON bodies of requests -> the pydantic models that define them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from rest_framework.request import Request

from .errors import Problem, Problems

M = TypeVar("M", bound=BaseModel)


class Body(NamedTuple):
    """What a request must send; `example` and `page` are named to those who send something else."""

    refusals: Callable[[ValidationError], Iterable[Any]]
    """What is wrong, field by field: (field, value, message) each."""
    example: str
    page: str

    def read(self, model: type[M], request: Request) -> M:
        """Read the body as `model`; raises Problem or Problems, which the API answers with 400."""
        data: Any = request.data
        if not isinstance(data, dict):
            raise Problem(
                "the body is no JSON object", field="body", value=data, remedy=f"send one like {self.example}, or {{}}"
            )
        try:
            return model.model_validate(data)
        except ValidationError as error:
            raise Problems([one._asdict() for one in self.refusals(error)], remedy=f"see {self.page}") from error
