"""In place of ssh for mpirun: `python -m runners.node.launch.span_agent HOST COMMAND` runs a command on a node.

It runs on the first node, and ends when the command has ended.
"""

from __future__ import annotations

import json
import os
import socket
import sys

from runners.node.launch.span_node import AGENT


def main(arguments: list[str]) -> int:
    """Return the exit code of the command; 255, like ssh, if it cannot be handed over."""
    # mpirun may put options of ssh before the host.
    options = [argument for argument in arguments if not argument.startswith("-")]
    host, command = options[0], " ".join(arguments[arguments.index(options[0]) + 1 :])
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(f"\0{os.environ[AGENT]}")
            connection.sendall(json.dumps({"host": host, "command": command}).encode() + b"\n")
            with connection.makefile() as answers:
                return int(json.loads(answers.readline() or '{"code": 255}')["code"])
    except (OSError, KeyError) as error:
        sys.stderr.write(f"parlab: {host} cannot be reached: {error}\n")
        return 255


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) & 255)
