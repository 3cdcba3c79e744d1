"""The page of an upload of 100 MB: from the request that uploads it until it shows findings of the beginning."""

from __future__ import annotations

import sys
import time
from statistics import median

from django.contrib.auth import get_user_model
from django.test import Client, override_settings
from django.urls import reverse

from tests.bench.imports import log
from tests.bench.lists import PLAIN_FILES
from tests.bench.result import Result, Scale

BYTES = 100_000_000
_BOUNDARY = "parlab-bench"
_WAIT_S = 300.0


def preview_first_s(scale: Scale) -> Result:
    """Measure a Megatron-LM log and one of no known format; return the slower, against its whole preview."""
    size, repeats = scale.of(BYTES), scale.repeats(3)
    known = log(max(10, size // 700))
    ticks = range(size // 55)
    unknown = "".join(
        f"<t> tick {n} objective=0.{n % 9}5 took {n % 7}.25ms, pushed {n % 5}00.5 held {n % 3}.5\n" for n in ticks
    )
    first: dict[str, float] = {}
    whole: dict[str, float] = {}
    with override_settings(STORAGES=PLAIN_FILES):
        client = _client()
        for name, content in (("megatron.log", known), ("unknown.log", unknown.encode())):
            times = [_upload(client, name, content) for _ in range(repeats)]
            first[name], whole[name] = (median(column) for column in zip(*times, strict=True))
            megabytes = len(content) / 1e6
            sys.stdout.write(f"  {name}: {megabytes:.1f} MB, first {first[name]:.2f} s, all {whole[name]:.1f} s\n")
    slowest = max(first, key=lambda name: first[name])
    against = f"{whole[slowest]:.1f} s until {slowest} is read as a whole"
    return Result(first[slowest], against, repeats, whole[slowest] / first[slowest])


def _client() -> Client:
    user, _ = get_user_model().objects.get_or_create(username="bench-preview", is_superuser=True, is_active=True)
    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(user)
    return client


def _upload(client: Client, name: str, content: bytes) -> tuple[float, float]:
    """Upload a file; return the seconds until the page shows the beginning, and until it shows everything."""
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode()
    body = head + content + f"\r\n--{_BOUNDARY}--\r\n".encode()
    began = time.perf_counter()
    answer = client.generic("POST", reverse("import"), body, f"multipart/form-data; boundary={_BOUNDARY}")
    page = answer["Location"]
    sys.stdout.write(f"  {name}: received after {time.perf_counter() - began:.2f} s\n")
    first = 0.0
    while time.perf_counter() - began < _WAIT_S:
        response = client.get(f"{page}live/")
        text = response.content.decode()
        if not first and "first 256 KiB" in text:
            first = time.perf_counter() - began
        if "HX-Redirect" in response:
            whole = time.perf_counter() - began
            return first or whole, whole
        time.sleep(0.05)
    raise RuntimeError(f"the preview of {name} was not complete after {_WAIT_S:.0f} s")
