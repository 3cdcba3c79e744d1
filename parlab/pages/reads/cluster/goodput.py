"""What the hours of devices became in the last weeks: steps of finished runs, or what was lost, by cause.

An attempt counts with its time from start to end on each of its devices. Of an attempt that finished, steps are the
number of its steps times their mean time; the rest is start, evaluation and what lies between steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.core.cache import cache
from django.db.models import Count, Max, QuerySet
from django.urls import reverse
from django.utils import timezone

from parlab.charts.cluster.goodput import Day, goodput_figure
from parlab.charts.format import SPACE, significant
from parlab.charts.svg import Svg, progress_bar
from parlab.lab.models import Attempt, Run
from runners.wire.protocol import RunState

WEEKS = timedelta(weeks=4)
MAX_ATTEMPTS = 20_000
KEEP_S = 60.0
CAUSES = {
    "kept": "Steps of runs that finished",
    "between": "Start and between steps",
    RunState.OOM: "Out of memory",
    RunState.FAILED: "Failed",
    RunState.LOST: "Lost",
    RunState.CANCELLED: "Cancelled",
    RunState.TIME_LIMIT: "Time limit",
    RunState.PREEMPTED: "Preempted",
}
"""What hours became; the first is useful."""
_HOUR_S = 3600.0


class Cause(NamedTuple):
    """Hours that were lost."""

    kind: str
    title: str
    text: str
    bar: Svg


class Goodput(NamedTuple):
    """The last weeks in numbers and a figure."""

    figure: Svg | str
    """Empty where there are fewer than two days."""
    share: str
    kept: str
    hours: str
    unit: str
    lost: str
    causes: list[Cause]


def goodput_of(now: datetime, *, has_gpus: bool) -> Goodput | None:
    """Return what the hours of the last weeks became; None without any.

    The page asks every few seconds: an answer is kept until another attempt ends, for at most a minute.
    """
    facts = _ended(now).aggregate(count=Count("pk"), last=Max("pk"), at=Max("ended_at"))
    if not facts["count"]:
        return None
    zone = timezone.get_current_timezone_name()
    key = f"parlab.goodput.{has_gpus}.{zone}.{facts['count']}.{facts['last']}.{facts['at'].timestamp()}"
    kept: Goodput | None = cache.get(key)
    if kept is None:
        kept = _goodput(now, has_gpus=has_gpus)
        cache.set(key, kept, KEEP_S)
    return kept


def _goodput(now: datetime, *, has_gpus: bool) -> Goodput | None:
    days: dict[Any, dict[str, float]] = defaultdict(lambda: dict.fromkeys(CAUSES, 0.0))
    for attempt in _rows(_ended(now)):
        for kind, hours in _hours(attempt).items():
            days[timezone.localtime(attempt["started_at"]).date()][kind] += hours
    totals = {kind: sum(day[kind] for day in days.values()) for kind in CAUSES}
    total, kept = sum(totals.values()), totals["kept"]
    if total <= 0:
        return None
    small, scale = ("min", 60.0) if total < 1 else ("h", 1.0)
    unit = f"GPU{SPACE}{small}" if has_gpus else small
    lost = sorted(((hours, kind) for kind, hours in totals.items() if kind != "kept" and hours > 0), reverse=True)
    most = max((hours for hours, _ in lost), default=1.0)
    return Goodput(
        figure=_figure(days) if len(days) > 1 else "",
        share=f"{100 * kept / total:.1f}",
        kept=significant(scale * kept),
        hours=significant(scale * total),
        unit=unit,
        lost=significant(scale * (total - kept)),
        causes=[
            Cause(str(kind), CAUSES[kind], significant(scale * hours), progress_bar(hours / most, CAUSES[kind]))
            for hours, kind in lost
        ],
    )


def pool_hours(pool: str, now: datetime) -> dict[str, float]:
    """Return what the device hours of one pool became in the last weeks, by cause (see `CAUSES`)."""
    totals = dict.fromkeys(CAUSES, 0.0)
    for attempt in _rows(_ended(now).filter(run__resolved__cluster__pool=pool)):
        for kind, hours in _hours(attempt).items():
            totals[kind] += hours
    return totals


def _rows(attempts: QuerySet[Attempt]) -> list[dict[str, Any]]:
    fields = ("started_at", "ended_at", "state", "run__gpus", "summary__steps", "summary__step_time_s")
    return list(attempts.order_by("-started_at").values(*fields)[:MAX_ATTEMPTS])


def _ended(now: datetime) -> QuerySet[Attempt]:
    began = Attempt.objects.filter(started_at__gte=now - WEEKS, ended_at__isnull=False)
    return began.filter(run__origin=Run.Origin.MEASURED)


def _hours(attempt: Mapping[str, Any]) -> dict[str, float]:
    """Return the hours of the devices of an attempt, by what they became."""
    spent = max(0.0, (attempt["ended_at"] - attempt["started_at"]).total_seconds())
    devices = float(attempt["run__gpus"] or 1)
    if attempt["state"] not in (RunState.FINISHED, RunState.CHECKPOINTED):
        state = attempt["state"] if attempt["state"] in CAUSES else RunState.FAILED
        return {state: spent * devices / _HOUR_S}
    steps = _steps_s(attempt["summary__steps"], attempt["summary__step_time_s"])
    kept = spent if steps is None else min(spent, steps)
    return {"kept": kept * devices / _HOUR_S, "between": (spent - kept) * devices / _HOUR_S}


def _steps_s(steps: Any, times: Any) -> float | None:
    """Return the time of all steps of an attempt, warm-up included; None for one without steps."""
    if not isinstance(steps, Mapping) or not isinstance(times, Mapping):
        return None
    count, left_out, mean = steps.get("count"), steps.get("left_out") or [], times.get("mean")
    if not isinstance(count, int) or not isinstance(mean, int | float):
        return None
    return float(mean) * (count + (len(left_out) if isinstance(left_out, list) else 0))


def _figure(days: Mapping[Any, Mapping[str, float]]) -> Svg:
    rows = [
        Day(
            f"{day:%-d %b}",
            [(f"gp-{kind}", CAUSES[kind], hours) for kind, hours in days[day].items() if hours],
            f"{reverse('nodes')}?day={day:%Y-%m-%d}#events",
        )
        for day in sorted(days)
    ]
    least = min(
        (100 * days[day]["kept"] / sum(days[day].values()) for day in days if sum(days[day].values())), default=0
    )
    return goodput_figure(rows, max(0.0, 10.0 * ((least - 5) // 10)))
