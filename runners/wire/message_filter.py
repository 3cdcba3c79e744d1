"""Connections to Redis that survive every message: what is no sound task is refused before Celery reads it.

Celery's transport ends a worker at the first message that it cannot decode, and a message decides there which
serializer, compression and follow-up tasks are used. Here a message is read once, checked, and written anew with
nothing but the name of its task, its arguments and its expiry.
"""

from __future__ import annotations

import binascii
import json
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from kombu import Connection
from kombu.transport import redis

# The stubs of kombu leave out most of the transport.
transport: Any = redis

MAX_MESSAGE_BYTES = 8 << 20
"""The largest batch is about 2 MiB."""

Check = Callable[[str, str, list[Any], dict[str, Any]], str]
"""check(queue, task, arguments, named arguments) -> why the message is refused, or an empty string."""
Refuse = Callable[[str, str, bytes], None]
"""refuse(queue, reason, message)."""


# The other tasks are for Celery, which takes the messages one by one.
_TAKE = """
local taken = {}
while #taken < tonumber(ARGV[1]) do
  local raw = redis.call('LINDEX', KEYS[1], -1)
  if not raw or not string.find(raw, ARGV[2], 1, true) then break end
  table.insert(taken, redis.call('RPOP', KEYS[1]))
end
return taken
"""


class Unreadable(ValueError):
    """Raised for a message that is no sound task; the text is the reason."""


class Sound(NamedTuple):
    task: str
    identity: str
    arguments: list[Any]
    body: str
    expires: str | None


def sound(raw: bytes, queue: str, check: Check) -> bytes:
    """Return a message written anew, or raise Unreadable with the reason."""
    message = read(raw, queue, check)
    return _written(queue, message.task, message.identity, message.body, message.expires)


def message(queue: str, task: str, argument: Any) -> bytes:
    """Return the message that starts a task with one argument, as it lies in the queue."""
    body = b64encode(json.dumps([[argument], {}, {}]).encode()).decode()
    return _written(queue, task, str(uuid.uuid4()), body, None)


def take_next(client: Any, queue: str, task: str, limit: int) -> list[bytes]:
    """Take up to `limit` messages out of a queue, oldest first, until one of another task comes."""
    return list(client.eval(_TAKE, 1, queue, str(limit), f'"{task}"'))


def read(raw: bytes, queue: str, check: Check) -> Sound:
    """Return the content of a message, or raise Unreadable with the reason."""
    if len(raw) > MAX_MESSAGE_BYTES:
        raise Unreadable(f"larger than {MAX_MESSAGE_BYTES >> 20} MiB")
    message = _parsed(raw, "the message")
    headers, properties = message.get("headers"), message.get("properties")
    if not isinstance(headers, dict) or not isinstance(properties, dict):
        raise Unreadable("headers or properties are missing")
    if message.get("content-type") != "application/json" or properties.get("body_encoding") != "base64":
        raise Unreadable("the body is not JSON in base64; pickle and other serializers are refused")
    if headers.get("compression"):
        raise Unreadable("the body is compressed, which no sender does")
    task, identity = headers.get("task"), headers.get("id")
    if not isinstance(task, str) or not isinstance(identity, str) or len(identity) > 100:
        raise Unreadable("the name or the id of the task is missing")
    body = message.get("body")
    arguments, named = _arguments(body)
    if reason := check(queue, task, arguments, named):
        raise Unreadable(reason)
    return Sound(task, identity, arguments, str(body), _expiry(headers.get("expires")))


def _parsed(raw: bytes | str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{what} is not JSON") from error
    if not isinstance(value, dict):
        raise Unreadable(f"{what} is no JSON object")
    return value


def _arguments(body: Any) -> tuple[list[Any], dict[str, Any]]:
    try:
        content = json.loads(b64decode(body, validate=True))
    except (TypeError, binascii.Error) as error:
        raise Unreadable("the body is not base64") from error
    except (ValueError, RecursionError) as error:
        raise Unreadable("the body is not JSON") from error
    if not isinstance(content, list) or len(content) != 3:
        raise Unreadable("the body has no arguments")
    arguments, named, embedded = content
    if not isinstance(arguments, list) or not isinstance(named, dict) or not isinstance(embedded, dict):
        raise Unreadable("the body has no arguments")
    if any(embedded.values()):
        raise Unreadable("the message has follow-up tasks, which no sender uses")
    return arguments, named


def _expiry(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return datetime.fromisoformat(value).isoformat()
    except (TypeError, ValueError) as error:
        raise Unreadable("the expiry is no date") from error


def _written(queue: str, task: str, identity: str, body: str, expires: str | None) -> bytes:
    headers: dict[str, Any] = {
        "lang": "py",
        "task": task,
        "id": identity,
        "root_id": identity,
        "parent_id": None,
        "group": None,
    }
    headers |= {"retries": 0, "timelimit": [None, None], "eta": None, "expires": expires, "ignore_result": True}
    properties = {
        "correlation_id": identity,
        "reply_to": "",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": str(uuid.uuid4()),
    }
    message = {"body": body, "content-encoding": "utf-8", "content-type": "application/json", "headers": headers}
    return json.dumps({**message, "properties": properties}).encode()


class GuardedQoS(transport.QoS):  # type: ignore[misc]
    """Unacknowledged messages, which also lie in Redis."""

    def restore_by_tag(self, tag: Any, client: Any = None, leftmost: bool = False) -> None:
        """Put a message back into its queue; one that is damaged is removed and refused."""
        try:
            super().restore_by_tag(tag, client, leftmost)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            with self.channel.conn_or_acquire(client) as connection:
                raw = connection.hget(self.unacked_key, tag) or b""
                self._remove_from_indices(tag, connection.pipeline()).execute()
            self.channel.refuse(self.unacked_key, "an unacknowledged message is damaged", raw)


class GuardedChannel(transport.Channel):  # type: ignore[misc]
    """A channel that hands on sound messages only."""

    QoS = GuardedQoS

    def _create_client(self, asynchronous: bool = False) -> Any:
        client = super()._create_client(asynchronous=asynchronous)
        client.set_response_callback("BRPOP", self._checked)
        return client

    def _checked(self, response: Any, **_: Any) -> tuple[Any, bytes] | None:
        """Return queue and message; None, like after a timeout, for a message that is refused."""
        if not response:
            return None
        key, raw = response
        queue = key.decode(errors="replace").rsplit(self.sep, 1)[0]
        try:
            return key, sound(raw, queue, self.connection.client.check)
        except Unreadable as error:
            self.refuse(queue, str(error), raw)
            return None

    def refuse(self, queue: str, reason: str, raw: bytes) -> None:
        """Count a message that was refused."""
        self.connection.client.refuse(queue, reason, raw)


class GuardedTransport(transport.Transport):  # type: ignore[misc]
    """Celery's transport for Redis with guarded channels.

    Its type has a name of its own: workers neither gossip nor synchronise over it, which would be two more ways in.
    """

    Channel = GuardedChannel
    driver_type = "guarded redis"


def guarded(check: Check, refuse: Refuse, base: type[Connection] = Connection) -> type[Connection]:
    """Return a class of connections to Redis whose messages are checked."""

    class GuardedConnection(base):  # type: ignore[misc, valid-type]  # a class from a parameter
        def get_transport_cls(self) -> Any:
            cls = super().get_transport_cls()
            return GuardedTransport if cls is transport.Transport else cls

        def check(self, queue: str, task: str, arguments: list[Any], named: dict[str, Any]) -> str:
            """Return why a message is refused, or an empty string."""
            return check(queue, task, arguments, named)

        def refuse(self, queue: str, reason: str, raw: bytes) -> None:
            """Count a message that was refused."""
            refuse(queue, reason, raw)

    return GuardedConnection
