"""Signed messages to nodes."""

import logging

import kombu.exceptions
import redis
from django.conf import settings

from parlab.celery import app
from parlab.lab.models import Attempt
from runners.protocol import CANCEL_TASK, START_TASK, Cancel, RunSpec, node_queue, sign

logger = logging.getLogger(__name__)

_BROKER_ERRORS = (kombu.exceptions.OperationalError, redis.RedisError, OSError)


def send_start(attempt: Attempt) -> bool:
    """Send the node of an attempt the order to start it; return whether the broker accepted the message."""
    assert attempt.node is not None, "an attempt is dispatched to a node"
    node = attempt.node.name
    spec = RunSpec(run=attempt.run_id, attempt=attempt.number, node=node, config=attempt.run.resolved)
    return _send(START_TASK, spec)


def send_cancel(*, run: int, attempt: int, node: str, reason: str) -> bool:
    """Send a node the order to stop an attempt; return whether the broker accepted the message."""
    return _send(CANCEL_TASK, Cancel(run=run, attempt=attempt, node=node, reason=reason))


def _send(task: str, message: RunSpec | Cancel) -> bool:
    try:
        app.send_task(task, args=[sign(message, settings.NODE_KEY)], queue=node_queue(message.node))
    except _BROKER_ERRORS as error:
        logger.warning(
            "run %s attempt %s: %s for node %s was not sent because Redis is unavailable; it will be sent again: %s",
            message.run,
            message.attempt,
            task,
            message.node,
            error,
        )
        return False
    return True
