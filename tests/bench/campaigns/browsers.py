"""Two hundred people look at a server with a thousand nodes: pages, their figures, and their polls.

Each browser opens a page, asks for its figures, and polls its live parts at the intervals that the page states, with
what it has seen. It opens another page after half a minute. The cluster is that of `thousand_nodes`.
PARLAB_BENCH_BROWSERS=40 measures with that many.
"""

from __future__ import annotations

import html
import http.client
import os
import random
import re
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from parlab.lab.models import Experiment, Node
from runners.wire.protocol import RunState
from tests.bench.campaigns.simulated_daemons import POOL
from tests.bench.campaigns.thousand_nodes import LIVE_S, NODES, RUNS, Server, check, launched, until
from tests.bench.result import Result, Scale
from tests.bench.running import on_postgres
from tests.patience import TRAINING_S, wait_for

BROWSERS, STAY_S, FIGURES = 200, (15.0, 45.0), 4
_ELEMENT = re.compile(r"<[^>]*hx-get=\"[^\"]*\"[^>]*>")
_GET, _EVERY = re.compile(r"hx-get=\"([^\"]*)\""), re.compile(r"every (\d+)(ms|s)")
_FIGURE = re.compile(r"data-(?:figure-)?url=\"([^\"]*\.(?:json|svg)[^\"]*)\"")
_GOOD = (200, 204, 304)


class Poll(NamedTuple):
    """A live part of a page."""

    address: str
    every_s: float


@dataclass
class Times:
    """What all browsers waited for (s)."""

    pages: list[float] = field(default_factory=list)
    figures: list[float] = field(default_factory=list)
    polls: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


def browsers_page_p95_s(scale: Scale) -> Result:
    """Measure how long 200 browsers wait for pages while 1,000 nodes beat and 300 runs ship steps."""
    if "PARLAB_BENCH_DATABASE" not in os.environ:
        return on_postgres("browsers_page_p95_s", scale)
    nodes, runs = scale.of(NODES), scale.of(RUNS)
    count = scale.of(int(os.environ.get("PARLAB_BENCH_BROWSERS", str(BROWSERS))))
    live_s = 5 if scale.is_quick else int(os.environ.get("PARLAB_BENCH_LIVE_S", str(4 * LIVE_S)))
    with ExitStack() as held:
        server = Server(held, nodes)
        wait_for(lambda: Node.objects.online().filter(pool=POOL).count() == nodes, "all nodes are online", TRAINING_S)
        experiment = launched("Runs that people look at", runs, iterations=live_s + 40)
        until(experiment, RunState.RUNNING, runs)
        before, began = server.cpu_s(), time.monotonic()
        times = _look(server, experiment, count, live_s)
        seconds = time.monotonic() - began
        busy = {name: (now - before[name]) / seconds for name, now in server.cpu_s().items()}
        until(experiment, RunState.FINISHED, runs)
        check(experiment)
    if times.errors:
        raise RuntimeError(f"answers that are no pages: {dict(times.errors)}")
    parts = ", ".join(f"{name} {share:.2f}" for name, share in busy.items())
    against = (
        f"{len(times.pages)} pages, median {np.median(times.pages):.2f} s, worst {max(times.pages):.2f} s;"
        f" {len(times.figures)} figures, p95 {_p95(times.figures):.2f} s; {len(times.polls) / seconds:.0f} polls/s,"
        f" p95 {_p95(times.polls):.2f} s; {parts}"
    )
    return Result(_p95(times.pages), against, 1)


def _p95(values: list[float]) -> float:
    return float(np.percentile(values, 95)) if values else 0.0


def _look(server: Server, experiment: Experiment, count: int, seconds: float) -> Times:
    """Let browsers look for so long."""
    paths = ["/", "/experiments/", "/nodes/", "/watch/", experiment.get_absolute_url()]
    paths += [run.get_absolute_url() for run in experiment.runs.select_related("experiment")[:50]]
    paths += [f"{experiment.get_absolute_url()}table/", f"{experiment.runs.all()[0].get_absolute_url()}log/"]
    times, ends_at = Times(), time.monotonic() + seconds
    looking = [
        threading.Thread(target=Browser(server, times, paths, random.Random(number)).look, args=(ends_at,), daemon=True)
        for number in range(count)
    ]
    for thread in looking:
        thread.start()
    for thread in looking:
        thread.join()
    return times


class Browser:
    """One person's browser, with a connection that it keeps."""

    def __init__(self, server: Server, times: Times, paths: list[str], chance: random.Random) -> None:
        self._server, self._times, self._paths, self._chance = server, times, paths, chance
        self._connection = http.client.HTTPConnection(server.host, timeout=60)

    def look(self, ends_at: float) -> None:
        """Open pages until a time."""
        time.sleep(self._chance.uniform(0, min(10.0, (ends_at - time.monotonic()) / 4)))  # not all at once
        while (now := time.monotonic()) < ends_at:
            page = self._get(self._chance.choice(self._paths), self._times.pages)
            for address in list(dict.fromkeys(map(html.unescape, _FIGURE.findall(page))))[:FIGURES]:
                self._get(address, self._times.figures)
            self._stay(polls_of(page), min(ends_at, now + self._chance.uniform(*STAY_S)))

    def _stay(self, polls: list[Poll], until_s: float) -> None:
        due = {place: time.monotonic() + poll.every_s for place, poll in enumerate(polls)}
        while (now := time.monotonic()) < until_s:
            for place, at in due.items():
                if at <= now:
                    content = self._get(polls[place].address, self._times.polls, is_poll=True)
                    polls[place] = next(iter(polls_of(content)), polls[place])
                    due[place] = time.monotonic() + polls[place].every_s
            time.sleep(0.1)

    def _get(self, address: str, kept: list[float], *, is_poll: bool = False) -> str:
        headers = {"Cookie": self._server.cookie} | ({"HX-Request": "true"} if is_poll else {})
        began = time.perf_counter()
        try:
            response, content = self._answer(address, headers)
        except (OSError, http.client.HTTPException) as problem:
            self._connection.close()
            self._times.errors[type(problem).__name__] += 1
            return ""
        kept.append(time.perf_counter() - began)
        if response.status not in _GOOD:
            self._times.errors[f"{response.status} {address.partition('?')[0]}"] += 1
        return content

    def _answer(self, address: str, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, str]:
        """Ask; once more where the server had closed the idle connection, as browsers do."""
        is_kept = self._connection.sock is not None
        try:
            response = self._asked(address, headers)
        except (http.client.RemoteDisconnected, ConnectionError):
            self._connection.close()
            if not is_kept:
                raise
            response = self._asked(address, headers)
        return response, response.read().decode()

    def _asked(self, address: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        self._connection.request("GET", address, headers=headers)
        return self._connection.getresponse()


def polls_of(content: str) -> list[Poll]:
    """Return the live parts of a page, or of one of its parts."""
    found = []
    for element in _ELEMENT.findall(content):
        address, every = _GET.search(element), _EVERY.search(element)
        if address and every and address[1].startswith(("/", "?")):
            found.append(Poll(html.unescape(address[1]), int(every[1]) / (1000 if every[2] == "ms" else 1)))
    return [poll for poll in found if poll.address.startswith("/")]
