"""The server's work for browsers that poll live parts in which nothing changes."""

from __future__ import annotations

import re
import time

import numpy as np
from django.contrib.auth import get_user_model
from django.test import Client, override_settings

from parlab.lab.models import Run
from parlab.series import store
from tests.bench.database import new_attempt
from tests.bench.lists import PLAIN_FILES
from tests.bench.result import Result, Scale
from tests.bench.series import columns_of

BROWSERS, DURATION_S = 200, 6.0
HTMX = {"HX-Request": "true"}


def polls_200_browsers_cores(scale: Scale) -> Result:
    """Measure the processor of 200 browsers that poll Home, experiments and runs as their pages do, in real time."""
    user, _ = get_user_model().objects.get_or_create(username="bench")
    runs = [new_attempt().run for _ in range(20)]
    for run in runs:
        store.append(run.current_attempt().pk, {("loss", 0): columns_of(np.ones(scale.of(20_000)))})
    with override_settings(STORAGES=PLAIN_FILES):
        polls = [_poll(user, run, kind) for kind in ("home", "experiment", "run") for run in runs]
        shared = _cores(polls[:1] * BROWSERS, scale)
        mixed = _cores([polls[number % len(polls)] for number in range(BROWSERS)], scale)
    against = f"{shared:.3f} cores if all show the same page"
    return Result(mixed, "cores", against, shared / mixed, 1)


def _poll(user: object, run: Run, kind: str) -> tuple[Client, str, float]:
    """Open a page; return its browser, the address it polls and how often."""
    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(user)  # type: ignore[arg-type]  # a user
    page = {"home": "/", "experiment": run.experiment.get_absolute_url(), "run": run.get_absolute_url()}[kind]
    content = client.get(page).content.decode()
    for match in re.finditer(r'hx-get="([^"]*[?;]seen=[^"]+)"[^>]*hx-trigger="every (\d+)(m?)s', content):
        return client, match[1].replace("&amp;", "&"), float(match[2]) / (1_000 if match[3] else 1)
    raise RuntimeError(f"{page} polls nothing")


def _cores(polls: list[tuple[Client, str, float]], scale: Scale) -> float:
    """Return the processor time per second of these polls, spread evenly over their intervals."""
    duration_s = DURATION_S / (10 if scale.is_quick else 1)
    due = sorted(
        ((number + 0.5) / len(polls) * every_s + turn * every_s, number)
        for number, (_, _, every_s) in enumerate(polls)
        for turn in range(int(duration_s / every_s))
    )
    began, used_s = time.monotonic(), time.process_time()
    for at, number in due:
        time.sleep(max(0.0, began + at - time.monotonic()))
        client, address, _ = polls[number]
        status = client.get(address, headers=HTMX).status_code
        if status not in (200, 204):
            raise RuntimeError(f"{address} returned status {status}")
    return (time.process_time() - used_s) / duration_s
