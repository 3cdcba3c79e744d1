"""Start a run on links with a given delay and rate: `python -m runners.links --config config.json`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from runners.config import ConfigError, RunConfig, check
from runners.engines.process.events import Printer
from runners.links import interface
from runners.links.emulate import Refused, run_emulated
from runners.links.ranks import NODE
from runners.links.refusal import refusal
from runners.node.launch import launch
from runners.node.launch.share import Share
from runners.supervisor.processes import die_with

CONFIG_EXIT_CODE = 2


def main(arguments: Sequence[str]) -> int:
    """Run the ranks and return their exit code: 0, or that of the first rank that failed."""
    parser = argparse.ArgumentParser(prog="python -m runners.links", description="Start a run on shaped links.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="a RunConfig as JSON")
    path = parser.parse_args(arguments).config.resolve()
    config, problems = check(json.loads(path.read_text()))
    try:
        if config is None:
            raise ConfigError(problems)
        config = interface.on_node(config, Share.from_environment(os.environ).interface)
        if why_not := refusal(config):
            raise Refused(why_not)
        return run_emulated(config, path) if config.network.apply == "emulate" else _behind_interface(config, path)
    except (ConfigError, Refused) as error:
        # The last line of an error event becomes the run's reason.
        Printer(NODE).emit("error", traceback=str(error))
        return CONFIG_EXIT_CODE


def _behind_interface(config: RunConfig, path: Path) -> int:
    """Start the run with its usual launcher, and shape an interface while it runs.

    The supervisor also restores the interface, and the daemon does if the supervisor was killed; when this module is
    started manually, only the code below does.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        interface.shape(path.parent, config.network)
    except ValueError as error:
        raise Refused(str(error)) from None
    try:
        _print_setting(config)
        command = launch.ranks_command(config, path, Share.from_environment(os.environ))
        with subprocess.Popen(command, preexec_fn=die_with(os.getpid())) as process:  # noqa: PLW1509  one thread
            try:
                code = process.wait()
            finally:
                process.terminate()
        return code if code >= 0 else 128 - code
    finally:
        interface.restore(path.parent)


def _print_setting(config: RunConfig) -> None:
    """Print the settings of the interface; actual delay and rate also depend on the remote machine."""
    network = config.network
    rate = None if network.bandwidth_gbps is None else network.bandwidth_gbps * 1e9
    Printer(NODE).emit(
        "link", by="interface", interface=network.interface, delay_s=network.delay_ms / 1e3, bits_per_s=rate
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
