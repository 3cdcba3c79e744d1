"""Refused messages of this process, until a task stores them (`lab.services.refused_store`)."""

import logging

from runners.wire.refusals import Refusals

PENDING = Refusals(logging.getLogger("parlab.refused"))
refuse = PENDING.add
