"""The command `parlab`: log in, report commands and files, send what is left on disk, look at runs."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from runners.client.http import Connection, Refused, Unreachable
from runners.client.output import Followed, follow, run_command
from runners.client.settings import Settings, settings, store
from runners.client.shipping import sync
from runners.client.spools import leftovers

OK, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
FOLLOW_S = 1.0
_EVENT = b'{"parlab":'
_FINAL = ("finished", "oom", "failed", "cancelled", "lost")

CODES = "exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 server unreachable; `run`: that of the command"


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.function(arguments, settings(arguments.url))
    except Unreachable as error:
        return _error(str(error), UNREACHABLE)
    except (Refused, ValueError, OSError) as error:
        return _error(str(error), FAILED)
    except KeyboardInterrupt:
        return 130
    return code


def _error(message: str, code: int) -> int:
    sys.stderr.write(f"parlab: {message}\n")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="parlab", description="Report runs to a parlab server, and look at them.", epilog=CODES
    )
    parser.add_argument("--url", help="address of the server (default: PARLAB_URL, or that of the last login)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, function: Callable[[argparse.Namespace, Settings], int], text: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(function=function)
        return added

    login = command("login", _login, "store the address of a server and a token from your account page")
    login.add_argument("--token", help="the token (default: PARLAB_TOKEN, or asked for)")
    listing = command("ls", _list, "list experiments, or the runs of an experiment")
    listing.add_argument("experiment", nargs="?", help="slug of an experiment")
    listing.add_argument("--state", default="", help="only runs in this state")
    show = command("show", _show, "show one run")
    logs = command("logs", _logs, "print the output of a run")
    for added in (show, logs):
        added.add_argument("experiment", help="slug of the experiment")
        added.add_argument("number", type=int, help="number of the run")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    for added in (listing, show):
        added.add_argument("--json", action="store_true", help="print JSON")
    command("sync", _sync, "send what scripts have recorded and the server does not have")
    run = command("run", _run, "run a command and report it: parlab run -- torchrun train.py")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command and its arguments")
    followed = command("follow", _follow, "report a file of output that grows")
    followed.add_argument("file", type=Path)
    followed.add_argument("--pid", type=int, help="end when this process has ended")
    followed.add_argument("--idle", type=float, metavar="SECONDS", help="end when the file has not grown for this long")
    for added in (run, followed):
        added.add_argument("--experiment", default="Default", help="name of the experiment (default: Default)")
        added.add_argument("--name", default="", help="name of the run")
        added.add_argument(
            "--run-id", help="ID of the run (default: PARLAB_RUN_ID, one for the Slurm job, or a new one)"
        )
    return parser


def _connection(login: Settings) -> Connection:
    return Connection(login.url, login.token)


def _login(arguments: argparse.Namespace, login: Settings) -> int:
    token = arguments.token or os.environ.get("PARLAB_TOKEN")
    if not token:
        token = getpass.getpass(f"Token for {login.url}: ") if sys.stdin.isatty() else sys.stdin.readline().strip()
    login = login._replace(token=token)
    _connection(login).json("GET", "/api/experiments/?page_size=1")
    sys.stdout.write(f"logged in at {login.url}; stored in {store(login)}\n")
    return OK


def _list(arguments: argparse.Namespace, login: Settings) -> int:
    columns: tuple[str, ...]
    if arguments.experiment:
        query = f"?page_size=1000&state={quote(arguments.state)}" if arguments.state else "?page_size=1000"
        path = f"/api/experiments/{quote(arguments.experiment, safe='')}/runs/{query}"
        columns = ("number", "state", "label", "started_at", "samples_per_s", "tokens_per_s", "ms_per_sample", "mfu")
    else:
        path, columns = "/api/experiments/?page_size=1000", ("slug", "name", "run_count", "findings_open", "created_at")
    connection = _connection(login)
    rows: list[dict[str, Any]] = []
    page = 1
    while True:
        answer = connection.json("GET", f"{path}&page={page}")
        rows += answer["results"]
        if not answer["next"]:
            break
        page += 1
    if arguments.json:
        _print_json(rows)
    else:
        _print_table([column for column in columns if any(row.get(column) not in (None, "") for row in rows)], rows)
    return OK


def _run_path(arguments: argparse.Namespace) -> str:
    return f"/api/experiments/{quote(arguments.experiment, safe='')}/runs/{arguments.number}/"


def _show(arguments: argparse.Namespace, login: Settings) -> int:
    run = _connection(login).json("GET", _run_path(arguments))
    if arguments.json:
        _print_json(run)
        return OK
    for key, value in run.items():
        if value not in (None, "", {}, []):
            text = (
                json.dumps(value, indent=2).replace("\n", "\n  ")
                if isinstance(value, (dict, list))
                else _table_cell(value)
            )
            sys.stdout.write(f"{key}: {text}\n")
    return OK


def _logs(arguments: argparse.Namespace, login: Settings) -> int:
    connection, position, rest = _connection(login), 0, b""
    while True:
        output, headers = connection.request("GET", f"{_run_path(arguments)}log/?from={position}")
        position = int(headers["Parlab-Next"])
        *lines, rest = (rest + output).split(b"\n")
        for line in lines:
            if not line.startswith(_EVENT):
                sys.stdout.buffer.write(line + b"\n")
        sys.stdout.flush()
        if output:
            continue
        if not arguments.follow or headers["Parlab-State"] in _FINAL:
            if rest and not rest.startswith(_EVENT):
                sys.stdout.buffer.write(rest + b"\n")
            sys.stdout.flush()
            return OK
        time.sleep(FOLLOW_S)


def _sync(_arguments: argparse.Namespace, login: Settings) -> int:
    connection = _connection(login)
    code, count = OK, 0
    for stream in leftovers():
        rank = stream.opening().get("rank", 0)
        try:
            run = sync(stream, connection)
            count += 1
            sys.stdout.write(f"sent rank {rank} of run {run['number']}: {run['url']}\n")
        except Refused as error:
            stream.refuse(str(error))
            code = _error(f"{stream.path}: {error}", FAILED)
        finally:
            stream.unlock()
    sys.stdout.write(f"{count} sent\n" if count else "nothing sent\n" if code else "nothing to send\n")
    return code


def _run(arguments: argparse.Namespace, login: Settings) -> int:
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not argv:
        return _error("no command to run; write it after `--`: parlab run -- torchrun train.py", USAGE)
    return run_command(argv, login, experiment=arguments.experiment, name=arguments.name, run_id=arguments.run_id)


def _follow(arguments: argparse.Namespace, login: Settings) -> int:
    followed = Followed(
        arguments.file, login, experiment=arguments.experiment, name=arguments.name, run_id=arguments.run_id
    )

    def is_over(idle_s: float) -> bool:
        if arguments.idle is not None and idle_s > arguments.idle:
            return True
        return arguments.pid is not None and not _is_alive(arguments.pid)

    run = follow(followed, is_over=is_over)
    if not run:
        return _error(f"{arguments.file} has no line that could be sent", FAILED)
    sys.stdout.write(f"run {run['number']} of {run['experiment']}: {run['url']}\n")
    return OK


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _print_table(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    table = [list(columns), *([_table_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    for row in table if rows else []:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths))
        sys.stdout.write(f"{line.rstrip()}\n")
    if not rows:
        sys.stdout.write("nothing here yet\n")


def _table_cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:60]


if __name__ == "__main__":
    sys.exit(main())
