"""Run the team's own training command: Megatron-LM, torchtitan, NeMo, any script. See docs/understand/engines.md.

Run `python -m runners.engines.command --config config.json`, one process. It substitutes fields of the configuration
into the command, checks that the node allows the command, and replaces itself with the command's launcher.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

from runners.config import PLACEHOLDER, ConfigError, Problem, RunConfig
from runners.engines.process import starting
from runners.engines.process.events import Printer
from runners.node.abilities import ALLOWED_COMMANDS, is_command_list
from runners.node.launch import contained, containers, launch, ports
from runners.node.launch.share import Share
from runners.supervisor.processes import MARKER


def command_argv(config: RunConfig) -> list[str]:
    """Return the command with each {section.field} replaced by its value.

    Raises ConfigError for a field that is empty or has several values.
    """
    values = config.resolved()

    def value_of(name: str) -> Any:
        if "." not in name:
            return getattr(config, name)
        section, _, field = name.partition(".")
        return values[section][field]

    problems = []
    argv = []
    for argument in config.command.argv or []:
        for name in PLACEHOLDER.findall(argument):
            if not isinstance(value_of(name), str | int | float):
                message = f"{{{name}}} has no single value to insert; set {name}, or remove it from the command"
                problems.append(Problem("command.argv", argument, message))
        argv.append(PLACEHOLDER.sub(lambda match: str(value_of(match[1])), argument))
    if problems:
        raise ConfigError(problems)
    return argv


def read_allowed(environment: Mapping[str, str]) -> list[list[str]]:
    """Read the allowed command prefixes of this node; raise ConfigError if the list is missing or invalid."""
    name = environment.get(ALLOWED_COMMANDS, "")
    if not name:
        raise _refused("this node allows no commands", f"ask its administrator to set {ALLOWED_COMMANDS}")
    try:
        allowed = json.loads(Path(name).read_text())
    except (OSError, ValueError) as error:
        raise _refused(
            f"cannot read {name}, the list of allowed commands of this node: {error}",
            "ask its administrator to fix the file",
        ) from error
    example = '[["/opt/train.py"]], lists of arguments that begin with an absolute path'
    if not is_command_list(allowed):
        raise _refused(f"{name} is not a list of commands", f"ask the node's administrator to write it like {example}")
    return cast(list[list[str]], allowed)


def check_allowed(argv: Sequence[str], allowed: Sequence[Sequence[str]]) -> None:
    """Raise ConfigError unless the command begins with one of the allowed lists of arguments."""
    if any(list(argv[: len(prefix)]) == list(prefix) for prefix in allowed):
        return
    choices = "; ".join(shlex.join(prefix) for prefix in allowed) or "nothing"
    raise _refused(
        f"{shlex.join(argv)[:300]} is not allowed on this node", f"use a command that begins with: {choices[:600]}"
    )


def launched(config: RunConfig, argv: Sequence[str], port: int) -> list[str]:
    """Prefix a command with its launcher; raise ConfigError if the launcher is not installed."""
    launcher = launch.launcher(config, Share.from_environment(os.environ), str(port))
    if not launcher:
        return list(argv)
    in_container = config.launcher.container is not None
    program = launcher[0] if in_container else shutil.which(launcher[0])
    if program is None:
        kind = config.launcher.kind
        message = f"{kind} is not installed on this node; install it, or use torchrun or plain"
        raise ConfigError([Problem("launcher.kind", kind, message)])
    # torchrun starts Python scripts: a module in front of the script gives each rank a stream of its own.
    streams = ["-m", "runners.supervisor.streams"] if config.starter.module else []
    return [program, *launcher[1:], *streams, *argv]


def _refused(reason: str, remedy: str) -> ConfigError:
    return ConfigError([Problem("command.argv", None, f"{reason}; {remedy}")])


def run(config: RunConfig, printer: Printer) -> NoReturn:
    """Replace this process with the command, so that its output and exit code are those of the run."""
    argv = command_argv(config)
    check_allowed(argv, read_allowed(os.environ))
    share = Share.from_environment(os.environ)
    port = share.port or ports.free_port()
    command = launched(config, argv, port)
    if config.starter.needs_port:
        os.environ |= ports.variables(port, share.master_address)
        os.environ |= launch.additions(config, os.environ, os.environ.get(MARKER, ""), share)
    printer.emit(
        "start",
        engine="command",
        world_size=config.world_size,
        launcher=config.launcher.kind,
        command=shlex.join(command),
    )
    sys.stdout.flush()
    if config.launcher.container is not None:
        contained.start(config, os.getcwd(), command)
    try:
        os.execv(command[0], command)
    except OSError as error:
        message = f"cannot start {command[0]}: {error.strerror}; check that the file exists and is executable"
        raise ConfigError([Problem("command.argv", command[0], message)]) from error


def main() -> int:
    """Run from the command line; return the exit code if the command was not started."""
    starting.handle_signals()
    printer = Printer(0)
    try:
        config = starting.read_config("command")
        starting.die_with_parent()
        if containers.inherited_memory_limit(config.launcher) is not None:
            starting.keep_limits(config)
        run(config, printer)
    except ConfigError as error:
        return starting.refuse(error, starting.rank_number())
    except Exception as error:
        starting.report(error, printer, traceback=starting.traceback_of(error))
        return 1


if __name__ == "__main__":
    starting.end(main())
