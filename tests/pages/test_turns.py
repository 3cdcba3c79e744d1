"""A process computes for a few requests at a time; the others wait for their turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse

from parlab.pages.requests.turns import in_turns


def test_no_more_requests_compute_at_a_time_than_the_setting_says_and_all_are_answered(
    settings: Any,
) -> None:
    settings.REQUESTS_AT_ONCE = 3
    now, most, order = 0, 0, list[int]()

    async def compute(request: HttpRequest) -> HttpResponse:
        nonlocal now, most
        now += 1
        most = max(most, now)
        order.append(int(request.path))
        await asyncio.sleep(0)
        now -= 1
        return HttpResponse(request.path)

    async def ask() -> list[bytes]:
        answer = in_turns(compute)
        requests = [HttpRequest() for _ in range(10)]
        for number, request in enumerate(requests):
            request.path = str(number)
        return [response.content for response in await asyncio.gather(*map(answer, requests))]

    assert asyncio.run(ask()) == [str(number).encode() for number in range(10)]
    assert most == 3
    assert order == list(range(10))


def test_a_request_that_fails_or_whose_browser_has_gone_gives_up_its_turn(settings: Any) -> None:
    settings.REQUESTS_AT_ONCE = 1

    async def compute(request: HttpRequest) -> HttpResponse:
        if request.path == "fails":
            raise ValueError
        if request.path == "hangs":
            await asyncio.sleep(600)
        return HttpResponse("answered")

    async def ask() -> bytes:
        answer = in_turns(compute)
        failing, hanging, other = HttpRequest(), HttpRequest(), HttpRequest()
        failing.path, hanging.path = "fails", "hangs"
        with pytest.raises(ValueError):
            await answer(failing)
        gone = asyncio.ensure_future(answer(hanging))
        waiting = asyncio.ensure_future(answer(other))
        await asyncio.sleep(0)
        gone.cancel()
        response: HttpResponse = await waiting
        return response.content

    assert asyncio.run(ask()) == b"answered"


def test_probes_are_answered_while_all_turns_are_taken(settings: Any) -> None:
    settings.REQUESTS_AT_ONCE = 1

    async def compute(request: HttpRequest) -> HttpResponse:
        if request.path == "/":
            await asyncio.sleep(600)
        return HttpResponse("alive")

    async def ask() -> bytes:
        answer = in_turns(compute)
        page, probe = HttpRequest(), HttpRequest()
        page.path, probe.path = "/", "/health"
        busy = asyncio.ensure_future(answer(page))
        await asyncio.sleep(0)
        response: HttpResponse = await answer(probe)
        busy.cancel()
        return response.content

    assert asyncio.run(ask()) == b"alive"


def test_a_server_without_an_event_loop_is_left_as_it_is() -> None:
    def compute(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    assert in_turns(compute) is compute
