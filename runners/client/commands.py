"""The command `parlab`."""

from __future__ import annotations

import argparse
import sys

from runners.client.http import Connection, Refused, Unreachable
from runners.client.settings import settings
from runners.client.shipping import sync
from runners.client.spools import leftovers

OK, FAILED, UNREACHABLE = 0, 1, 3


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(prog="parlab", description="Report runs to a parlab server.")
    commands = parser.add_subparsers(dest="command", required=True)
    sync_parser = commands.add_parser("sync", help="send what scripts have recorded and the server does not have")
    sync_parser.set_defaults(function=_sync)
    arguments = parser.parse_args(argv)
    code: int = arguments.function(arguments)
    return code


def _sync(_arguments: argparse.Namespace) -> int:
    login = settings()
    connection = Connection(login.url, login.token)
    code, count = OK, 0
    for stream in leftovers():
        rank = stream.opening().get("rank", 0)
        try:
            run = sync(stream, connection)
            count += 1
            sys.stdout.write(f"sent rank {rank} of run {run['number']}: {run['url']}\n")
        except Refused as error:
            stream.refuse(str(error))
            sys.stderr.write(f"{stream.path}: {error}\n")
            code = FAILED
        except Unreachable as error:
            sys.stderr.write(f"{error}\n")
            return UNREACHABLE
        finally:
            stream.unlock()
    sys.stdout.write(f"{count} sent\n" if count else "nothing to send\n")
    return code
