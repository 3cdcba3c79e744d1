"""`POST /files/ENTITY/PROJECT/RUN/file_stream`: history, system metrics, console and summary of a run, exactly once.

Each file is a list of lines, and a request states the number of its first line. Lines that are stored already are
skipped, so that a client may send a request again. Writers of a shared run count their lines separately.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Attempt, LatestMetric, LoggedValue, TrackedRun, WandbRun
from parlab.lab.services import storable
from parlab.series import store
from parlab.tracking import runs as services
from parlab.tracking.point import Point
from parlab.tracking.stores.foreign import MAX_KEY, MAX_TIME_MS, number_of, point, row_points

from .projects import experiment_of, find_run, own
from .protocol import JSON, Call, Missing, WandbError, body_of, json_of
from .runs import CONSOLE, EVENTS, HISTORY, SUMMARY, begin_again

SYSTEM = "system/"
MAX_VALUE = 256 << 10
"""Bytes of a logged value that is not a number."""
MAX_VALUES = 200_000
"""Values of a run that are not numbers."""
MAX_LINE = 1 << 20
INTERRUPTED = 255
"""Exit code that W&B's client states for a script that was interrupted."""
_ERROR = "ERROR "
_STAMP = len("2026-01-01T00:00:00.000000")


class _Lines(NamedTuple):
    offset: int
    content: list[str]


def receive(call: Call) -> JSON:
    """Store a request of a client, all or nothing."""
    body = body_of(call.http)
    files = {name: _lines(name, part) for name, part in _object(body.get("files"), "files").items()}
    writer = call.http.headers.get("X-Wandb-Async-Client-Id", "")[:64]
    experiment = experiment_of(call.text("entity"), call.text("project"), call.user)
    run = find_run(experiment, call.text("run"))
    if run is None:
        raise Missing("run", call.text("run"))
    own(call, run)
    run = begin_again(run, call.user) if _is_other_process(run, files, writer) else run
    with transaction.atomic():
        _apply(run, writer, files, body)
    return {"exitcode": None, "limits": {}}


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise WandbError(f"{name} is a {type(value).__name__}; send an object")
    return value


def _lines(name: str, part: Any) -> _Lines:
    fields = _object(part, f"files.{name}")
    offset, content = fields.get("offset", 0), fields.get("content", [])
    content = [content] if isinstance(content, str) else content
    if type(offset) is not int or not 0 <= offset < 2**53:
        raise WandbError(f"files.{name}.offset is {str(offset)[:80]!r}; send the number of the first line")
    if not isinstance(content, list) or not all(isinstance(line, str) for line in content):
        raise WandbError(f"files.{name}.content is not a list of texts; send the lines of the file")
    return _Lines(offset, content)


def _is_other_process(run: WandbRun, files: Mapping[str, _Lines], writer: str) -> bool:
    """Return whether a script that was started again under the same ID sends a file from its beginning."""
    return any(
        name in run.marks and not writer and lines.offset == 0 and lines.content and run.marks[name] != _mark(lines)
        for name, lines in files.items()
    )


def _mark(lines: _Lines) -> str:
    """Return the digest of a row, whose fields may come in any order."""
    row = json_of(lines.content[0], "The first line")
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def _apply(run: WandbRun, writer: str, files: Mapping[str, _Lines], body: JSON) -> None:
    attempt, tracked = services.lock(run.tracked)
    run = WandbRun.objects.get(pk=run.pk)  # as it is now that the lock is held
    rank = _rank(run, writer)
    points: list[Point] = []
    if HISTORY in files:
        rows = _new_rows(run, writer, HISTORY, files[HISTORY])
        points += _history(tracked, rows)
    if EVENTS in files:
        points += _samples(_new_rows(run, writer, EVENTS, files[EVENTS]), attempt.last_step or 0)
    is_ended = bool(body.get("complete"))
    text = _console(run, writer, files.get(CONSOLE), is_ended=is_ended)
    services.points_append(tracked=tracked, points=points, rank=rank, text=text)
    if not points and not text:
        services.touch(tracked)
    if SUMMARY in files and files[SUMMARY].content:
        _summary(run, tracked, attempt.pk, files[SUMMARY].content[-1], is_shared=bool(writer))
    if is_ended:
        run.writers.setdefault(writer, {})["exit_code"] = _whole(body.get("exitcode"))
    run.save()
    if is_ended:
        _end(run, tracked)


def _rank(run: WandbRun, writer: str) -> int:
    """Return the rank whose series a writer fills: writers of a shared run in the order in which they came."""
    state = run.writers.setdefault(writer, {})
    if "rank" not in state:
        state["rank"] = len(run.writers) - 1 if writer else 0
    state.pop("exit_code", None)
    return int(state["rank"])


def _new_rows(run: WandbRun, writer: str, name: str, lines: _Lines) -> Iterator[JSON]:
    """Yield the rows of a file that are not stored yet, and count them."""
    positions = run.positions.setdefault(writer, {})
    stored = positions.get(name, 0)
    if lines.offset == 0 and lines.content and name not in run.marks:
        run.marks[name] = _mark(lines)
    positions[name] = max(stored, lines.offset + len(lines.content))
    imported = run.writers.get(writer, {}).get("imported", {})
    for line in lines.content[max(0, stored - lines.offset) :]:
        row = json_of(line, f"A line of {name}")
        if isinstance(row, dict) and not _is_imported(row, imported):
            yield row


def _is_imported(row: JSON, imported: Mapping[str, Any]) -> bool:
    """Return whether a row was stored when the directory of its run was imported."""
    step, last_step, last_ms = _whole(row.get("_step")), imported.get("step"), imported.get("ms")
    if step is not None and last_step is not None:
        return step <= int(last_step)
    return last_ms is not None and _time_ms(row) <= float(last_ms)


def _history(tracked: TrackedRun, rows: Iterator[JSON]) -> list[Point]:
    """Return the numbers of rows of the history, and store everything else that they hold."""
    points: list[Point] = []
    values: list[LoggedValue] = []
    for row in rows:
        time_ms, step = _time_ms(row), _whole(row.get("_step")) or 0
        points += row_points(row, time_ms, step)
        values += _values(tracked, row, int(time_ms), step)
    if values and tracked.values.count() + len(values) <= MAX_VALUES:
        LoggedValue.objects.bulk_create(values, batch_size=500)
    return points


def _time_ms(row: JSON) -> float:
    time = number_of(row.get("_timestamp"))
    return time * 1000 if time is not None and 0 <= time * 1000 < MAX_TIME_MS else 0.0


def _values(tracked: TrackedRun, row: JSON, time_ms: int, step: int) -> Iterator[LoggedValue]:
    for key, value in _leaves(row, ""):
        if number_of(value) is None and value is not None and 0 < len(key) <= MAX_KEY:
            clean = storable.json(value)
            size = len(str(clean))
            if size > MAX_VALUE:
                clean = {"_type": "left-out", "bytes": size, "limit": MAX_VALUE}
            yield LoggedValue(tracked=tracked, key=storable.text(key), step=step, at_ms=time_ms, value=clean)


def _leaves(row: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, Mapping) and "_type" not in value and prefix.count(".") < 10:
            yield from _leaves(value, f"{prefix}{key}.")
        elif prefix or not key.startswith("_"):
            yield f"{prefix}{key}", value


def _samples(rows: Iterator[JSON], step: int) -> list[Point]:
    """Return what the client samples of the machine; a sample belongs to the last logged step."""
    return [
        sampled
        for row in rows
        for key, value in row.items()
        if key.startswith("system.")
        and (sampled := point(f"{SYSTEM}{key.removeprefix('system.')}", value, _time_ms(row), step)) is not None
    ]


# --- console ---------------------------------------------------------------------------------------------------------


def _console(run: WandbRun, writer: str, lines: _Lines | None, *, is_ended: bool) -> bytes:
    """Return the new lines of the console. The last line waits for the next one, as progress bars write it again."""
    state = run.writers.setdefault(writer, {})
    positions = run.positions.setdefault(writer, {})
    stored = positions.get(CONSOLE, 0)
    first = 0 if lines is None else lines.offset + _shift(state, lines, stored)
    number, held = state.pop("line", None) or (-1, "")
    sent = {} if lines is None else dict(enumerate(lines.content, first))
    pending = {number: held} if number >= stored else {}
    pending |= {index: line for index, line in sent.items() if index >= stored}
    if not pending:
        return b""
    last = max(pending)
    if not is_ended and last in sent:
        state["line"] = [last, pending.pop(last)[:MAX_LINE]]
    positions[CONSOLE] = max(stored, last if "line" in state else last + 1)
    return b"".join(_line(pending[index]) for index in sorted(pending))


def _shift(state: dict[str, Any], lines: _Lines, stored: int) -> int:
    """Return the number of the first line of the process that sends lines.

    A process that resumes a run goes on where its console ended, except for clients before 0.23, which begin at 0.
    """
    if not lines.content:
        return int(state.get("shift", 0))
    is_other = state.pop("resumed", False) and lines.content[0] != state.get("first")
    if is_other:
        state["shift"] = stored + ("line" in state) if lines.offset == 0 else 0
    if lines.offset == 0 and (is_other or "first" not in state):
        state["first"] = lines.content[0][:MAX_LINE]
    return int(state.get("shift", 0))


def _line(line: str) -> bytes:
    """Return a line without the time and level that the client writes before it."""
    text = line.removeprefix(_ERROR)
    if len(text) > _STAMP and text[_STAMP] == " " and text[10:11] == "T":
        text = text[_STAMP + 1 :]
    elif text.startswith("20") and len(text) == _STAMP:
        text = ""
    return storable.text(text.rstrip("\n"))[:MAX_LINE].encode() + b"\n"


# --- summary and end -------------------------------------------------------------------------------------------------


def _summary(run: WandbRun, tracked: TrackedRun, attempt_id: int, line: str, *, is_shared: bool) -> None:
    """Keep the summary; its numbers that no step has logged become values of the run, its texts tags."""
    summary = json_of(line, SUMMARY)
    if not isinstance(summary, dict):
        raise WandbError(f"{SUMMARY} is not an object; send one")
    run.summary = {**(run.summary if is_shared else {}), **storable.json(summary)}
    at_ms, step = int(_time_ms(summary)), _whole(summary.get("_step")) or 0
    stated = {each.key: each for each in row_points(summary, at_ms, step)}
    logged = store.metric_names([attempt_id])[attempt_id]
    LatestMetric.objects.bulk_create(
        [
            LatestMetric(tracked=tracked, key=key, value=_json_value(each), timestamp_ms=at_ms, step=step)
            for key, each in stated.items()
            if key not in logged
        ],
        update_conflicts=True,
        unique_fields=["tracked", "key"],
        update_fields=["value", "timestamp_ms", "step"],
    )
    texts = {
        f"summary.{key}"[:MAX_KEY]: storable.text(value)[:1_000]
        for key, value in _leaves(summary, "")
        if isinstance(value, str) and number_of(value) is None
    }
    services.tags_set(tracked=tracked, tags=texts)


def _json_value(point: Point) -> float | None:
    return None if math.isnan(point.value) else point.value


def _end(run: WandbRun, tracked: TrackedRun) -> None:
    """End the run once every writer has: the worst exit code counts."""
    codes = [state.get("exit_code") for state in run.writers.values()]
    if not all(code is not None for code in codes):
        return
    worst = _worst([code for code in codes if code is not None])
    status = TrackedRun.Status.FINISHED
    if worst:
        status = TrackedRun.Status.KILLED if worst == INTERRUPTED else TrackedRun.Status.FAILED
    Attempt.objects.filter(run_id=tracked.run_id).update(exit_code=worst)
    reason = f"exit code {worst}" if worst else ""
    services.tracked_run_update(tracked=tracked, status=status, end_ms=_now_ms(), reason=reason)


def _worst(codes: Sequence[int]) -> int:
    failed = [code for code in codes if code]
    return next((code for code in failed if code != INTERRUPTED), failed[0] if failed else 0)


def _now_ms() -> int:
    return int(timezone.now().timestamp() * 1000)


def _whole(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 2**31 else None
