"""The commands of the server and of a node. Their packages are optional, so they are imported when a command runs."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

from parlab.client.settings import Settings

OLDEST, NEWEST = (3, 11), (3, 13)
_DJANGO = (
    "django",
    "django_stubs_ext",
    "environ",
    "django_htmx",
    "rest_framework",
    "drf_spectacular",
    "csp",
    "servestatic",
)
SERVER = (*_DJANGO, "celery", "redis", "pydantic", "uvicorn")
"""What a server cannot start without, some of which an environment may have for other work."""
NODE = ("celery", "redis", "pydantic", "psutil", "cryptography", "pynvml")
Command = Callable[[str, Callable[[argparse.Namespace, Settings], int], str], argparse.ArgumentParser]


def add_parts(command: Command) -> None:
    """Add the commands `serve`, `manage`, `doctor`, `mcp` and `node`."""
    serve = command("serve", _serve, "run a server on this machine until Ctrl-C")
    serve.add_argument(
        "--data", type=Path, metavar="DIR", help="directory of all data (default: PARLAB_DATA_DIR, or the user's own)"
    )
    serve.add_argument("--port", help="first port to try (default: PORT, or 8000)")
    serve.add_argument("--host", help="address to listen on (default: 127.0.0.1); see ALLOWED_HOSTS")
    serve.add_argument("--node", action="store_true", help="also run the daemon of a node on this machine")
    manage = command("manage", _manage, "administer a server on this machine: parlab manage token USER")
    manage.add_argument("rest", nargs=argparse.REMAINDER, metavar="COMMAND", help="a command, or help")
    agents = command("mcp", _mcp, "serve the API as tools of an agent (MCP), over standard input and output")
    agents.add_argument("--agent", default="agent", help="name of the agent in the audit log")
    agents.add_argument("--runs", type=int, default=0, help="runs that it may launch in all (default: 0)")
    agents.add_argument("--gpu-hours", type=float, default=0.0, help="GPU hours that these may take (default: 0)")
    doctor = command("doctor", _doctor, "check a server on this machine, and say what to do")
    doctor.add_argument("--json", action="store_true", help="write a list of objects")
    doctor.add_argument("--mend", action="store_true", help="first change what can be changed here")
    node = command(
        "node", _node, "run the daemon of a node; further options are those of python -m runners.node.daemon"
    )
    node.add_argument("--server", required=True, metavar="URL", help="address of the server")
    node.add_argument("--code", default="", help="one-time code of an administrator, with which the node enrols first")
    node.add_argument(
        "--data", type=Path, metavar="DIR", help="data directory of a server on this machine, for its Redis and key"
    )
    node.set_defaults(takes_more=True)


def _serve(arguments: argparse.Namespace, _login: Settings) -> int:
    if arguments.data is not None:
        os.environ["PARLAB_DATA_DIR"] = str(arguments.data.absolute())
    options = [f"--{name}={value}" for name in ("port", "host") if (value := getattr(arguments, name))]
    if arguments.node:
        return _run_manage(["serve", *options, "--node"], "server,node", (*SERVER, *NODE))
    return _run_manage(["serve", *options])


def _manage(arguments: argparse.Namespace, _login: Settings) -> int:
    return _run_manage(arguments.rest)


def _doctor(arguments: argparse.Namespace, _login: Settings) -> int:
    return _run_manage(["doctor", *(f"--{name}" for name in ("json", "mend") if getattr(arguments, name))])


def _run_manage(arguments: list[str], extra: str = "server", required: Sequence[str] = SERVER) -> int:
    module = _imported("parlab.manage", arguments[0] if arguments else "manage", extra, required)
    module.main(["parlab", *arguments])
    return 0


def _mcp(arguments: argparse.Namespace, login: Settings) -> int:
    module = _imported("parlab.agents.server", "mcp", "mcp", ("mcp",))
    module.main(login.url, login.token, agent=arguments.agent, runs=arguments.runs, gpu_hours=arguments.gpu_hours)
    return 0


def _node(arguments: argparse.Namespace, _login: Settings) -> int:
    module = _imported("runners.node.joining", "node", "node", NODE)
    return int(module.main(arguments.server, arguments.code, arguments.data, arguments.more))


def _imported(name: str, command: str, extra: str, required: Sequence[str]) -> Any:
    """Import a module of the server or of a node. Raises ValueError, ImportError with a remedy."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        python = ".".join(map(str, sys.version_info[:3]))
        raise ValueError(
            f"parlab {command} requires Python 3.11 to 3.13, and this is {python}: create an environment with one of"
            f" them, like python3.12 -m venv parlab-{extra}, and run pip install 'parlab[{extra}]' in it"
        )
    missing = [module for module in required if importlib.util.find_spec(module) is None]
    if missing:
        raise ImportError(
            f"parlab {command} requires packages that are not installed ({', '.join(missing)}): run pip install"
            f" 'parlab[{extra}]'"
        )
    return importlib.import_module(name)
