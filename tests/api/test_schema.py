"""Generated requests, valid and not, to every operation of the OpenAPI document, in every role.

schemathesis makes the cases from the document and checks that the answers are those that the document promises.
API_CASES=500 tries more of them in the slow tests.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from django.contrib.auth.models import Group, User
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from drf_spectacular.generators import SchemaGenerator
from hypothesis import strategies as st

from parlab.api.experiments import waiting
from parlab.ingest.batches.output import output_append
from parlab.lab.models import Attempt
from parlab.lab.services.access.groups import groups_refresh
from parlab.lab.services.access.tokens import token_create
from parlab.lab.services.marks import comment_add

if TYPE_CHECKING:
    import schemathesis

# schemathesis takes seconds to import and the document seconds to make: only where the tests run, not in every worker.

ROLES = ("nobody", "viewer", "operator", "admin")
CASES = int(os.environ.get("API_CASES", "4"))
METHODS = ("get", "post", "put", "patch", "delete")
OPEN = ("/api/login/device/", "/api/login/device/token/", "/api/enrolment/redis/", "/api/spools/{run_id}/{attempt}/")
"""What `parlab login` and `parlab node` call before they have a token, and pods, whose signature is the credential."""
STEP = b'{"parlab":1,"t":1.0,"rank":0,"event":"step","step":%d,"step_time_s":0.5,"loss":%s}\n'


@functools.cache
def document() -> Any:
    """The OpenAPI document of the server."""
    import schemathesis

    config = schemathesis.Config.from_dict({})
    generator = SchemaGenerator()  # type: ignore[no-untyped-call]  # drf-spectacular has no types
    schema = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call]  # as above
    return schemathesis.openapi.from_dict(schema, config=config)


@functools.cache
def checks() -> list[Any]:
    """What an answer is checked for."""
    from schemathesis import checks
    from schemathesis.specs.openapi import checks as openapi_checks

    return [
        checks.not_a_server_error,
        openapi_checks.status_code_conformance,
        openapi_checks.content_type_conformance,
        openapi_checks.response_headers_conformance,
        openapi_checks.response_schema_conformance,
    ]


@pytest.fixture
def tokens(db: None) -> dict[str, str]:
    """The header of each role; that of `nobody` is empty."""
    groups_refresh()
    headers = {"nobody": ""}
    for role in ROLES[1:]:
        person = User.objects.create_user(role, password="member of a group")
        person.groups.add(Group.objects.get(name=role))
        headers[role] = f"Token {token_create(user=person, name='a script', by=person)[1]}"
    return headers


@pytest.fixture
def places(make_attempt: Callable[..., Attempt], user: User, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Parts of addresses behind which there is something."""
    attempt = make_attempt(state="finished")
    output_append(attempt, b"".join(STEP % (step, b"NaN" if step == 3 else b"1.5") for step in range(1, 6)))
    comment = comment_add(experiment=attempt.run.experiment, text="words", user=user)
    monkeypatch.setattr(waiting, "_EVERY_S", 0.0)
    monkeypatch.setattr(waiting, "_timeout_s", lambda text: 0.0 * _timeout(text))
    return {"slug": attempt.run.experiment.slug, "number": attempt.run.number, "id": comment.pk}


_timeout = waiting._timeout_s


@pytest.fixture
def one_connection() -> Iterator[None]:
    """Requests use the connection, and so the transaction, of the test."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.mark.usefixtures("one_connection")
@pytest.mark.parametrize("cases", [1, pytest.param(CASES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS)
def test_every_operation_answers_in_every_role_as_the_document_promises(
    method: str, cases: int, tokens: dict[str, str], places: dict[str, Any]
) -> None:
    labels = sorted(result.ok().label for result in document().get_all_operations())
    assert {label.partition(" ")[0].lower() for label in labels} <= set(METHODS)
    paths = [path for verb, _, path in (label.partition(" ") for label in labels) if verb.lower() == method]
    assert paths
    for path in paths:
        send_cases(method.upper(), path, cases, tokens, places)


def send_cases(method: str, path: str, cases: int, tokens: dict[str, str], places: dict[str, Any]) -> None:
    """Send the cases of an operation in every role."""
    operation = document()[path][method]
    application = get_wsgi_application()
    statuses: set[tuple[str, int]] = set()

    @hypothesis.settings(max_examples=cases, database=None, phases=[hypothesis.Phase.generate])
    @hypothesis.given(case=operation.as_strategy(), is_real=st.sampled_from([True, True, True, False]))
    def send(case: schemathesis.Case[Any], is_real: bool) -> None:
        if is_real:
            case.path_parameters = {**case.path_parameters, **{name: places[name] for name in named if name in places}}
        for role in ROLES:
            headers = {"Accept-Encoding": "identity"} | ({"Authorization": tokens[role]} if tokens[role] else {})
            with transaction.atomic():
                response = case.call(app=application, base_url="http://127.0.0.1", headers=headers)
                transaction.set_rollback(True)
            statuses.add((role, response.status_code))
            case.validate_response(response, checks=checks())
            if role == "nobody" and path not in OPEN:
                assert response.status_code in (401, 404), f"{method} {path} answers nobody with {response.status_code}"

    named = [parameter.name for parameter in operation.path_parameters]
    send()
    assert path in OPEN or ("nobody", 401) in statuses, f"{method} {path} never refuses nobody"
