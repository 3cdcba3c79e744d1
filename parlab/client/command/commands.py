"""The command `parlab`: report commands and files, look at runs, launch and watch them, import and export."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from parlab.client.command import actions, boards, completion, syncing
from parlab.client.command.device_login import NotOffered, confirmed_token
from parlab.client.command.events import is_event_file
from parlab.client.command.output import Followed, follow, run_command
from parlab.client.command.parts import add_parts
from parlab.client.command.tables import print_json, print_table, table_cell
from parlab.client.http import Connection, Refused, Unreachable
from parlab.client.server.api import Api
from parlab.client.server.experiments import FINAL, Experiment
from parlab.client.settings import Settings, settings, store
from parlab.client.version import VERSION

OK, FAILED, USAGE, UNREACHABLE, ENDED_BADLY = 0, 1, 2, 3, actions.ENDED_BADLY
FOLLOW_S = 1.0
_EVENT = b'{"parlab":'
SCOPES = ("read", "report", "write", "launch", "admin")

CODES = (
    "exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 server unreachable; 4 watch, wait: a run has ended and"
    " is not finished; 130 interrupted; `run`: that of the command"
)


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = command_parser()
    arguments, more = parser.parse_known_args(argv)
    if more and not getattr(arguments, "takes_more", False):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    arguments.more = more
    try:
        code: int = arguments.function(arguments, settings(arguments.url))
        if not sys.stdout.closed:  # as `parlab mcp` leaves it
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has ended, as `head` does; at exit Python would flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Unreachable as error:
        return _error(str(error), UNREACHABLE)
    except (Refused, ValueError, OSError, ImportError) as error:
        return _error(str(error), FAILED)
    except KeyboardInterrupt:
        return 130
    return code


def _error(message: str, code: int) -> int:
    sys.stderr.write(f"parlab: {message}\n")
    return code


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="parlab", description="Report runs to a parlab server, and look at them.", epilog=CODES
    )
    parser.add_argument("--version", action="version", version=f"parlab {VERSION}")
    parser.add_argument("--url", help="address of the server (default: PARLAB_URL, or that of the last login)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, function: Callable[[argparse.Namespace, Settings], int], text: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(function=function)
        return added

    login = command("login", _login, "store the address of a server, and a token that you confirm in the browser")
    login.add_argument("url", nargs="?", default=argparse.SUPPRESS, metavar="ADDRESS", help="address of the server")
    login.add_argument("--server", dest="url", default=argparse.SUPPRESS, metavar="ADDRESS", help="the same")
    login.add_argument(
        "--token", help="a token from your account page (default: PARLAB_TOKEN, or a line of the standard input)"
    )
    login.add_argument(
        "--scope",
        action="append",
        default=[],
        choices=SCOPES,
        help="what the token may do, repeatable (default: read, write, launch)",
    )
    listing = command("ls", _list, "list experiments, or the runs of an experiment")
    listing.add_argument("experiment", nargs="?", help="slug of an experiment")
    listing.add_argument("--state", default="", help="only runs in this state")
    listing.add_argument("--filter", default="", help="runs of one or all experiments: 'loss < 2 and params.lr = 0.1'")
    show = command("show", _show, "show one run")
    logs = command("logs", _logs, "print the output of a run")
    for added in (show, logs):
        added.add_argument("experiment", help="slug of the experiment")
        added.add_argument("number", type=int, help="number of the run")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    _add_actions(command, [listing, show])
    syncing.add_options(command("sync", syncing.run, "send what scripts have recorded and the server does not have"))
    run = command("run", _run, "run a command and report it: parlab run -- torchrun train.py")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command and its arguments")
    followed = command("follow", _follow, "report a file of output, or TensorBoard's event files, as they grow")
    followed.add_argument("file", type=Path, help="a log, an event file, or a directory of event files")
    followed.add_argument("--pid", type=int, help="end when this process has ended")
    followed.add_argument("--idle", type=float, metavar="SECONDS", help="end when the file has not grown for this long")
    for added in (run, followed):
        added.add_argument("--experiment", default="Default", help="name of the experiment (default: Default)")
        added.add_argument("--name", default="", help="name of the run")
        added.add_argument(
            "--run-id", help="ID of the run (default: PARLAB_RUN_ID, one for the Slurm job, or a new one)"
        )
    add_parts(command)
    return parser


Command = Callable[[str, Callable[[argparse.Namespace, Settings], int], str], argparse.ArgumentParser]


def _add_actions(command: Command, with_json: list[argparse.ArgumentParser]) -> None:
    """Add the commands that act on the server."""
    launch = command("launch", _on_server(actions.launch), "launch the points of a configuration that have no run")
    launch.add_argument("--version", type=int, help="version of the configuration (default: the newest)")
    launch.add_argument("--config", type=Path, metavar="FILE", help='JSON with "data" and "sweep" to save first')
    launch.add_argument("--note", default="", help="note of the new version")
    launch.add_argument("--watch", action="store_true", help="watch the runs until they have ended")
    watch = command("watch", _on_server(actions.watch), "show the progress of runs until they have ended")
    export = command("export", _on_server(actions.export), "write runs, series and logs into a directory")
    export.add_argument("--output", type=Path, default=Path("export"), metavar="DIRECTORY")
    export.add_argument("--format", choices=("csv", "arrow"), default="csv", help="format of the series")
    export.add_argument("--artifacts", action="store_true", help="also the artifacts of reported runs")
    wait = command("wait", _on_server(actions.wait), "wait until a run has ended")
    wait.add_argument("--timeout", type=float, metavar="SECONDS", help="give up after this long")
    cancel = command("cancel", _on_server(actions.cancel), "cancel a run")
    end_chain = command("end-chain", _on_server(actions.end_chain), "end a chain after its current attempt")
    relaunch = command("relaunch", _on_server(actions.relaunch), "start the next attempt of a run that has ended")
    for added in (launch, watch, export, wait, cancel, end_chain, relaunch):
        added.add_argument("experiment", help="slug of the experiment")
    for added in (watch, export):
        added.add_argument("numbers", nargs="*", type=int, metavar="number", help="numbers of runs")
    for added in (wait, cancel, end_chain, relaunch):
        added.add_argument("number", type=int, help="number of the run")
    compare = command("compare", _on_server(actions.compare), "compare runs: parlab compare bert:1 bert:2")
    compare.add_argument("runs", nargs="+", metavar="EXPERIMENT:NUMBER")
    plan = command("plan", _on_server(actions.plan), "plan a training: parlab plan layers=24 hidden=2048 nodes=2")
    plan.add_argument("fields", nargs="*", metavar="NAME=VALUE")
    plan.add_argument("--file", type=Path, help="JSON with fields")
    plan.add_argument("--huggingface", type=Path, metavar="CONFIG", help="config.json of the model")
    plan.add_argument("--rows", type=int, default=10, help="rows per table (default: 10)")
    imported = command("import", _on_server(actions.import_paths), "import files, directories and stores of trackers")
    imported.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    imported.add_argument("--experiment", default="", help="slug of the experiment to import into")
    imported.add_argument("--format", default="", help="format (default: recognised from the content)")
    imported.add_argument("--dry-run", action="store_true", help="only show what would be imported")
    for added in (*with_json, launch, watch, compare, plan, imported):
        added.add_argument("--json", action="store_true", help="print JSON")
    shells = command("completion", _completion, 'completion for a shell: eval "$(parlab completion bash)"')
    shells.add_argument("shell", choices=completion.SHELLS)


def _completion(arguments: argparse.Namespace, _login: Settings) -> int:
    sys.stdout.write(completion.script(command_parser(), arguments.shell))
    return OK


def _api(login: Settings) -> Api:
    return Api(login.url, login.token)


def _on_server(action: Callable[[argparse.Namespace, Api], int]) -> Callable[[argparse.Namespace, Settings], int]:
    return lambda arguments, login: action(arguments, _api(login))


def _connection(login: Settings) -> Connection:
    return Connection(login.url, login.token)


def _login(arguments: argparse.Namespace, login: Settings) -> int:
    token = arguments.token or os.environ.get("PARLAB_TOKEN")
    if not token and not sys.stdin.isatty():
        token = sys.stdin.readline().strip()
    if not token:
        try:
            token = confirmed_token(_connection(login._replace(token="")), arguments.scope, _say)
        except NotOffered:
            token = getpass.getpass(f"Token for {login.url}, from your account page: ")
    login = login._replace(token=token)
    _connection(login).json("GET", "/api/experiments/?page_size=1")
    sys.stdout.write(f"logged in at {login.url}; stored in {store(login)}\n")
    return OK


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


_RUN_COLUMNS = ("number", "state", "label", "started_at", "samples_per_s", "tokens_per_s", "ms_per_sample", "mfu")


def _list(arguments: argparse.Namespace, login: Settings) -> int:
    columns: tuple[str, ...]
    api = _api(login)
    if arguments.filter:
        found = api.runs(arguments.filter, experiment=arguments.experiment or "")
        rows = [run.data for run in found if arguments.state in ("", run.data["state"])]
        columns = ("experiment", *_RUN_COLUMNS)
    elif arguments.experiment:
        rows = [run.data for run in Experiment(api.connection, arguments.experiment).runs(arguments.state)]
        columns = _RUN_COLUMNS
    else:
        rows = [experiment.data for experiment in api.experiments()]
        columns = ("slug", "name", "runs", "findings_open", "created_at")
    if arguments.json:
        print_json(rows)
    else:
        print_table(columns, rows)
    return OK


def _run_path(arguments: argparse.Namespace) -> str:
    return f"/api/experiments/{quote(arguments.experiment, safe='')}/runs/{arguments.number}/"


def _show(arguments: argparse.Namespace, login: Settings) -> int:
    run = _connection(login).json("GET", _run_path(arguments))
    if arguments.json:
        print_json(run)
        return OK
    for key, value in run.items():
        if value not in (None, "", {}, []):
            text = (
                json.dumps(value, indent=2).replace("\n", "\n  ")
                if isinstance(value, (dict, list))
                else table_cell(value)
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
        if not arguments.follow or headers["Parlab-State"] in FINAL:
            if rest and not rest.startswith(_EVENT):
                sys.stdout.buffer.write(rest + b"\n")
            sys.stdout.flush()
            return OK
        time.sleep(FOLLOW_S)


def _run(arguments: argparse.Namespace, login: Settings) -> int:
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not argv:
        return _error("no command to run; write it after `--`: parlab run -- torchrun train.py", USAGE)
    return run_command(argv, login, experiment=arguments.experiment, name=arguments.name, run_id=arguments.run_id)


def _follow(arguments: argparse.Namespace, login: Settings) -> int:
    boards.check(arguments.file)
    is_board = arguments.file.is_dir() or is_event_file(arguments.file)
    kind = boards.FollowedBoard if is_board else Followed
    followed = kind(
        arguments.file, login, experiment=arguments.experiment, name=arguments.name, run_id=arguments.run_id
    )

    def is_over(idle_s: float) -> bool:
        if arguments.idle is not None and idle_s > arguments.idle:
            return True
        return arguments.pid is not None and not _is_alive(arguments.pid)

    run = follow(followed, is_over=is_over)
    if not run:
        return _error(f"{arguments.file} has nothing that could be sent: no whole line, no event file", FAILED)
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


if __name__ == "__main__":
    sys.exit(main())
