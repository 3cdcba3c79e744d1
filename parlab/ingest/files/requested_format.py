"""The format in which files are to be read: one of parlab's, or one that the team taught it."""

from __future__ import annotations

from typing import NamedTuple

from parlab.formats import FORMATS
from parlab.formats.exports import event_files
from parlab.formats.learnt.learnt import PREFIX, Learnt
from parlab.ingest.files.received import Refused
from parlab.lab.models import LogFormat, Source


class Wanted(NamedTuple):
    """A format by name; `learnt` is its definition if it is one of the team's."""

    name: str
    learnt: Learnt | None = None
    log_format: LogFormat | None = None

    @property
    def label(self) -> str:
        """Return what marks the numbers read with a learnt format; empty for parlab's own formats."""
        return str(self.log_format) if self.log_format else ""


def formats() -> list[str]:
    """Return the names of parlab's own formats."""
    return sorted({*FORMATS, event_files.NAME})


def wanted_format(name: str | None) -> Wanted | None:
    """Return the format of this name, `learnt:NAME` for one of the team's; None for None. Raises Refused."""
    if name is None:
        return None
    if name.startswith(PREFIX):
        label = name.removeprefix(PREFIX)
        version = LogFormat.objects.filter(name=label, is_deleted=False).order_by("-version").first()
        if version is None:
            raise Refused(f"unknown learnt format {label!r}; choose one of the page Log formats, or omit it")
        return of_log_format(version)
    if name not in formats():
        raise Refused(f"unknown format {name!r}; use one of {', '.join(formats())}, or omit it")
    return Wanted(name)


def of_log_format(log_format: LogFormat) -> Wanted:
    """Return a version of one of the team's formats."""
    return Wanted(f"{PREFIX}{log_format.name}", Learnt.model_validate(log_format.definition), log_format)


def wanted_of(source: Source) -> Wanted | None:
    """Return the format in which a stored file was read on request; None if it was recognised."""
    if source.log_format is not None:
        return of_log_format(source.log_format)
    # A format of an earlier version is recognised anew.
    return Wanted(source.wanted_format) if source.wanted_format in formats() else None
