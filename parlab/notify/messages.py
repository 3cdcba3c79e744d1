"""Events as the body of a webhook, and as mails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from parlab.lab.models import Event

from .models import Subscription

MAX_LISTED = 20
"""Events that a mail lists in full; of the others it gives the number."""
_SLACK_TEXT = 3_000
"""Characters that Slack takes in a section."""
_SUMMARY = ("loss", "step_time_s", "samples_per_s", "tokens_per_s", "memory_peak_bytes", "mfu", "steps")


def body_of(event: Event, subscription: Subscription) -> bytes:
    """Return the JSON of a webhook: that of a chat service by its name, else all that is known."""
    if subscription.style == Subscription.Style.SLACK:
        return orjson.dumps(_slack(event, address_of(event, subscription)))
    if subscription.style == Subscription.Style.TEAMS:
        return orjson.dumps(_teams(event, address_of(event, subscription)))
    experiment, run = event.experiment, event.run
    content: dict[str, Any] = {
        "id": str(event.uuid),
        "kind": event.kind,
        "at": event.at.isoformat(),
        "text": event.text,
        "url": address_of(event, subscription),
        "experiment": {"name": experiment.name, "slug": experiment.slug} if experiment else None,
        "run": {"number": run.number, "label": run.label, "state": run.state} if run else None,
        "data": event.data,
    }
    if run is not None:
        content["run"]["summary"] = {name: run.summary[name] for name in _SUMMARY if name in run.summary}
    return orjson.dumps(content)


def _slack(event: Event, address: str) -> dict[str, Any]:
    """Return a message of Slack's incoming webhooks."""
    text = event.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    linked = f"{text} <{address}|Open>" if address else text
    return {"text": linked, "blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": linked[:_SLACK_TEXT]}}]}


def _teams(event: Event, address: str) -> dict[str, Any]:
    """Return an adaptive card, as a workflow of Microsoft Teams takes it."""
    place = event.experiment.name if event.experiment else ""
    body = [{"type": "TextBlock", "text": event.text, "wrap": True}]
    body += [{"type": "TextBlock", "text": place, "isSubtle": True, "wrap": True}] if place else []
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    if address:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open", "url": address}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def address_of(event: Event, subscription: Subscription) -> str:
    """Return the address of the event's page; empty if the server does not know its own."""
    return subscription.base_url.rstrip("/") + event.path if subscription.base_url and event.path else ""


def mail_of(pairs: Sequence[tuple[Event, Subscription]]) -> tuple[str, str]:
    """Return subject and text of a mail about one event or about many, in the order of their times."""
    events = [event for event, _ in pairs]
    if len(pairs) == 1:
        event, subscription = pairs[0]
        return _subject(event.text), "\n".join(_lines(event, subscription)) + _footer(subscription)
    counts = Counter((event.get_kind_display(), event.experiment.name if event.experiment else "") for event in events)
    overview = [f"{kind}{f' in {name}' if name else ''}: {count}" for (kind, name), count in counts.most_common()]
    listed = [line for event, subscription in pairs[:MAX_LISTED] for line in [*_lines(event, subscription), ""]]
    more = [f"and {len(pairs) - MAX_LISTED} more."] if len(pairs) > MAX_LISTED else []
    text = "\n".join([*overview, "", *listed, *more])
    return _subject(f"{len(pairs)} events: {'; '.join(overview)}"), text + _footer(pairs[0][1])


def _lines(event: Event, subscription: Subscription) -> list[str]:
    address = address_of(event, subscription)
    return [f"{event.at:%Y-%m-%d %H:%M:%S} UTC  {event.text}", *([address] if address else [])]


def _footer(subscription: Subscription) -> str:
    base = subscription.base_url.rstrip("/")
    return f"\n\n-- \nChange what parlab sends you: {base}/notifications/\n" if base else "\n"


def _subject(text: str) -> str:
    line = " ".join(text.split())
    return f"[parlab] {line}" if len(line) <= 140 else f"[parlab] {line[:139]}…"


def headers_of(event: Event, tries: int) -> Mapping[str, str]:
    """Return the headers that identify an event; the key stays the same for every try."""
    return {
        "Content-Type": "application/json",
        "User-Agent": "parlab",
        "Idempotency-Key": str(event.uuid),
        "X-Parlab-Event": event.kind,
        "X-Parlab-Try": str(tries),
    }
