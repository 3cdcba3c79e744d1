"""Store what this process refused; every task that nodes or beat call does so."""

import logging

from django.db import DatabaseError

from parlab.lab.services.access.refused import refused_store
from parlab.refusals import PENDING

STORE_EVERY_S = 1.0
"""A flood of refused messages costs the database one transaction in this time."""

logger = logging.getLogger(__name__)


def store_refused() -> None:
    """Store the messages that this process has refused since the last time."""
    refused = PENDING.take(every_s=STORE_EVERY_S)
    if not refused:
        return
    try:
        refused_store(refused=refused)
    except DatabaseError as error:
        logger.warning("refused messages were not counted: %s", error)
