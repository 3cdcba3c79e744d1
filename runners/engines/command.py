"""A command of the team's own: Megatron-LM, torchtitan, NeMo, any script. See docs/engines-more.md.

`python -m runners.engines.command --config config.json`, one process that fills the configuration's fields into the
command, checks that the node allows it, and becomes its launcher.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from runners import launch, ports
from runners.config import PLACEHOLDER, ConfigError, Problem, RunConfig
from runners.engines.rank import Rank, start
from runners.processes import MARKER

ALLOWED_COMMANDS = "PARLAB_ALLOWED_COMMANDS"
"""Variable of the daemon that names the file of allowed commands."""


def filled(config: RunConfig) -> list[str]:
    """Return the command with the values of fields in place of {section.field}; raises ConfigError for empty ones."""
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
                message = f"{{{name}}} has no single value to fill in; give {name} one, or leave it out"
                problems.append(Problem("command.argv", argument, message))
        argv.append(PLACEHOLDER.sub(lambda match: str(value_of(match[1])), argument))
    if problems:
        raise ConfigError(problems)
    return argv


def read_allowed(environment: Mapping[str, str]) -> list[list[str]]:
    """Read the beginnings of commands that this node allows; raises ConfigError where there is no such list."""
    name = environment.get(ALLOWED_COMMANDS, "")
    if not name:
        raise _refused("this node allows no commands", f"have its administrator name a list in {ALLOWED_COMMANDS}")
    try:
        allowed = json.loads(Path(name).read_text())
    except (OSError, ValueError) as error:
        raise _refused(f"{name}, this node's list of commands, cannot be read: {error}", "have it mended") from error
    shape = '[["/opt/train.py"]], lists of arguments that begin with an absolute path'
    if not isinstance(allowed, list) or not all(_is_beginning(one) for one in allowed):
        raise _refused(f"{name} is no list of commands", f"have it written like {shape}")
    return cast(list[list[str]], allowed)


def _is_beginning(one: Any) -> bool:
    is_argv = isinstance(one, list) and bool(one) and all(isinstance(argument, str) for argument in one)
    return is_argv and Path(one[0]).is_absolute()


def check_allowed(argv: Sequence[str], allowed: Sequence[Sequence[str]]) -> None:
    """Raise ConfigError unless the command begins, argument by argument, as one that is allowed."""
    if any(list(argv[: len(beginning)]) == list(beginning) for beginning in allowed):
        return
    choice = "; ".join(shlex.join(beginning) for beginning in allowed) or "nothing"
    raise _refused(f"{shlex.join(argv)[:300]} is not allowed on this node", f"use one that begins with: {choice[:600]}")


def launched(config: RunConfig, argv: Sequence[str], port: int) -> list[str]:
    """Put the launcher before a command; raises ConfigError when the machine does not have it."""
    before = launch.launcher(config, str(port))
    if not before:
        return list(argv)
    program = shutil.which(before[0])
    if program is None:
        kind = config.launcher.kind
        message = f"{kind} is not installed on this node; install it, or use torchrun or plain"
        raise ConfigError([Problem("launcher.kind", kind, message)])
    return [program, *before[1:], *argv]


def _refused(what: str, remedy: str) -> ConfigError:
    return ConfigError([Problem("command.argv", None, f"{what}; {remedy}")])


def run(rank: Rank) -> None:
    """Become the command: its output is the run's output, its exit code the run's."""
    config = rank.config
    argv = filled(config)
    check_allowed(argv, read_allowed(os.environ))
    port = ports.free_port()
    whole = launched(config, argv, port)
    if config.starter.needs_port:
        os.environ |= ports.variables(port)
        os.environ |= launch.additions(config, os.environ, os.environ.get(MARKER, ""))
    rank.printer.emit(
        "start",
        engine="command",
        world_size=config.world_size,
        launcher=config.launcher.kind,
        command=shlex.join(whole),
    )
    sys.stdout.flush()
    try:
        os.execv(whole[0], whole)
    except OSError as error:
        message = f"{whole[0]} cannot be started: {error.strerror}; see that it is there and may be executed"
        raise ConfigError([Problem("command.argv", whole[0], message)]) from error


if __name__ == "__main__":
    start("command", run, is_alone=True)
