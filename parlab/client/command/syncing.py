"""`parlab sync`: send what scripts have recorded; list, rename and drop what no server accepts."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime

from parlab.client import mending
from parlab.client.command.tables import print_json, print_table
from parlab.client.http import Connection, Refused
from parlab.client.settings import Settings
from parlab.client.shipping import sync
from parlab.client.spools import Stream, leftovers

OK, FAILED = 0, 1
UNACCEPTABLE = 400
"""Status of a description that no server of this version accepts: what is wrong is in the spool itself."""
_COLUMNS = ("spool", "experiment", "run", "rank", "recorded_at", "bytes", "refused")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    acts = parser.add_mutually_exclusive_group()
    acts.add_argument("--list", action="store_true", help="list what waits, and why the server refuses it")
    acts.add_argument("--rename", metavar="SPOOL", help="give a spool another --experiment or --run-id, then send it")
    acts.add_argument("--drop", metavar="SPOOL", help="delete a spool")
    parser.add_argument("--experiment", default="", help="name of the experiment, with --rename")
    parser.add_argument("--run-id", default="", help="ID of the run, with --rename")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(arguments: argparse.Namespace, login: Settings) -> int:
    """Send what scripts have recorded, or act on one spool."""
    if arguments.list:
        return _list(is_json=arguments.json)
    if arguments.drop:
        return _drop(arguments.drop)
    connection = Connection(login.url, login.token)
    if arguments.rename:
        return _rename(arguments, connection)
    return _send_all(connection)


def _list(*, is_json: bool) -> int:
    rows = []
    for stream in leftovers():
        opening = stream.opening()
        recorded_at = datetime.fromtimestamp(stream.last_written_at).isoformat(" ", "seconds")
        rows.append(
            {
                "spool": stream.id,
                "experiment": opening.get("experiment", ""),
                "run": opening.get("run_id", ""),
                "rank": opening.get("rank", 0),
                "recorded_at": recorded_at,
                "bytes": stream.size,
                "refused": stream.refusal,
            }
        )
        stream.unlock()
    if is_json:
        print_json(rows)
    else:
        print_table(_COLUMNS, rows, empty="nothing to send")
    return OK


def _drop(name: str) -> int:
    stream = _spool(name)
    stream.remove()
    sys.stdout.write(f"deleted {stream.id}\n")
    return OK


def _rename(arguments: argparse.Namespace, connection: Connection) -> int:
    if not (arguments.experiment or arguments.run_id):
        raise ValueError("--rename needs a name: add --experiment NAME or --run-id ID")
    stream = _spool(arguments.rename)
    try:
        stream.rename(
            experiment=mending.name("experiment", arguments.experiment), run_id=mending.run_id(arguments.run_id) or ""
        )
        return _sent(stream, connection)
    finally:
        stream.unlock()


def _spool(name: str) -> Stream:
    """Return the locked spool of an ID or of its beginning; raises ValueError."""
    matches = []
    for stream in leftovers():
        if stream.id.startswith(name):
            matches.append(stream)
        else:
            stream.unlock()
    if len(matches) != 1:
        for stream in matches:
            stream.unlock()
        raise ValueError(f"spool {name!r} is that of {len(matches)} directories; `parlab sync --list` lists them")
    return matches[0]


def _send_all(connection: Connection) -> int:
    code, sent, refused = OK, 0, 0
    for stream in leftovers():
        try:
            result = _sent(stream, connection)
        finally:
            stream.unlock()
        sent += result == OK
        refused += result != OK
        code = max(code, result if result == FAILED else OK)
    sys.stdout.write(f"{sent} sent\n" if sent else "nothing sent\n" if refused else "nothing to send\n")
    return code


def _sent(stream: Stream, connection: Connection) -> int:
    """Send a spool; return FAILED where the server refuses it, UNACCEPTABLE where it has done so before."""
    known, rank = stream.refusal, stream.opening().get("rank", 0)
    try:
        run = sync(stream, connection)
    except Refused as error:
        stream.refuse(str(error))
        sys.stderr.write(f"parlab: {stream.path}: {error}\n")
        if error.status != UNACCEPTABLE:
            return FAILED
        sys.stderr.write(
            f"parlab: it stays; `parlab sync --rename {stream.id[:8]} --experiment NAME` or"
            f" `parlab sync --drop {stream.id[:8]}`\n"
        )
        return UNACCEPTABLE if known else FAILED
    sys.stdout.write(f"sent rank {rank} of run {run['number']}: {run['url']}\n")
    return OK
