"""Command line and settings of the daemon: read, and refused with the setting and the remedy."""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from runners.config import ENGINES
from runners.config.launchers import LAUNCHERS
from runners.node.abilities import Allowed, read_names
from runners.node.addresses import address_towards, check_own
from runners.node.jobs.pool import Pace
from runners.node.keeper import Limits
from runners.node.kubernetes import pool as kubernetes
from runners.node.run_as import Account, read_account
from runners.node.slurm import pool as slurm
from runners.node.spot import SpotNotice, read_place
from runners.wire.keys import KEY_FILE
from runners.wire.protocol import LEASE_S

MAX_LEASE_S = 7 * 86400.0

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,119}")
_POOL_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")

_DURATION = re.compile(r"(\d{1,9}(?:\.\d+)?)([smhd]?)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Settings(NamedTuple):
    node: str
    pool: str
    slots: int
    state_dir: Path
    redis_url: str
    key: bytes | None
    """The shared key; None: the node has a key of its own."""
    limits: Limits
    address: str
    """Address at which other nodes reach this one."""
    lease_s: float | None
    allowed: Allowed
    slurm: slurm.Pool | None = None
    """What runs may use of Slurm."""
    kubernetes: kubernetes.Pool | None = None
    """What runs may use of Kubernetes; None, also of Slurm: runs start on this machine."""
    run_as: Account | None = None
    """Account of the ranks; None: that of the daemon."""
    spot_notice: SpotNotice | None = None
    """Where it is announced that this node is taken away."""

    @property
    def pace(self) -> Pace | None:
        """How it deals with the batch system that runs go to; None: they start on this machine."""
        pool = self.slurm or self.kubernetes
        return pool.pace if pool else None


def read_duration(text: str) -> float | None:
    """Read a duration like 90, 90s, 15m, 1h or 2d in seconds; raises ValueError. Empty: None."""
    if not text:
        return None
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _SECONDS[match[2] or "s"] if match else 0.0
    if not LEASE_S <= seconds <= MAX_LEASE_S:
        raise ValueError(f"invalid --lease {text!r}; use {LEASE_S:g}s or more, at most 7d, like 90s, 15m, 1h")
    return seconds


def read_settings(options: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Read the settings; raises ValueError with the setting that is missing or invalid, and the remedy."""
    if not _NODE_NAME.fullmatch(options.node):
        raise ValueError(f"invalid --node {options.node!r}; use letters, digits, dots, - and _")
    if not _POOL_NAME.fullmatch(options.pool):
        raise ValueError(f"invalid --pool {options.pool!r}; use lower case letters, digits, dots, - and _")
    if options.slots < 1:
        raise ValueError(f"--slots {options.slots} is less than 1; use 1 or more")
    redis_url = environment.get("REDIS_URL", "")
    if not redis_url:
        raise ValueError("REDIS_URL is not set; set it to that of the server, like redis://:password@server:6379/0")
    limit, grace = environment.get("PARLAB_SPOOL_LIMIT_MIB", "4096"), environment.get("PARLAB_DISK_GRACE_S", "60")
    if not limit.isdecimal() or int(limit) < 1:
        raise ValueError(f"invalid PARLAB_SPOOL_LIMIT_MIB {limit!r}; use a whole number of MiB, 1 or more")
    try:
        limits = Limits(int(limit), float(grace))
    except ValueError:
        raise ValueError(f"invalid PARLAB_DISK_GRACE_S {grace!r}; use a number of seconds") from None
    return Settings(
        node=options.node,
        pool=options.pool,
        slots=options.slots,
        state_dir=options.state_dir,
        redis_url=redis_url,
        key=_read_key(environment, options.state_dir),
        limits=limits,
        address=check_own(options.address) if options.address else address_towards(redis_url),
        lease_s=read_duration(options.lease),
        allowed=Allowed(
            read_names(options.engines, "--engines", ENGINES),
            read_names(options.launchers, "--launchers", LAUNCHERS),
            _names(options.shape),
            _names(options.images),
            tuple(os.path.realpath(path) for path in _names(options.mounts)),
        ),
        slurm=slurm.read_pool(options.slurm, options.partition or "", environment, slots=options.slots),
        kubernetes=kubernetes.read_pool(options, environment, options.state_dir),
        run_as=read_account(
            options.run_as, is_slurm=options.slurm, is_kubernetes=options.kubernetes, shape=options.shape
        ),
        spot_notice=read_place(options.spot_notice),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _read_key(environment: Mapping[str, str], state_dir: Path) -> bytes | None:
    key, path = environment.get("PARLAB_NODE_KEY", ""), environment.get("PARLAB_NODE_KEY_FILE", "")
    if not key and path:
        try:
            key = Path(path).read_text()
        except OSError as error:
            raise ValueError(f"PARLAB_NODE_KEY_FILE {path} cannot be read: {error.strerror}; check the path") from None
    if not key.strip():
        if (state_dir / KEY_FILE).exists():
            return None
        raise ValueError(
            "PARLAB_NODE_KEY is not set; set it to the node key of the server, or PARLAB_NODE_KEY_FILE to its path,"
            " or enrol the node with a code of an administrator: python -m runners.node.daemon enrol --code ..."
        )
    return key.strip().encode()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m runners.node.daemon",
        description="Run the daemon of a node; with stop-all end its runs, with drain take no new ones.",
        epilog="REDIS_URL and PARLAB_NODE_KEY (or PARLAB_NODE_KEY_FILE) are read from the environment.",
    )
    parser.add_argument("action", nargs="?", choices=["run", "stop-all", "drain", "enrol"], default="run")
    parser.add_argument("--node", default=os.environ.get("PARLAB_NODE_NAME") or socket.gethostname())
    parser.add_argument("--code", default="", help="with enrol: one-time code of an administrator")
    parser.add_argument("--pool", default="default", help="pool that the node belongs to")
    parser.add_argument("--slots", type=int, default=1, help="runs that the node executes at the same time")
    parser.add_argument("--address", default="", help="IP address for other nodes; default: the one that reaches Redis")
    parser.add_argument("--lease", default="", help="time without heartbeats after which its runs are lost, like 1h")
    parser.add_argument("--engines", default="", help="engines that runs may use here; default: all that are installed")
    parser.add_argument("--launchers", default="", help="launchers that runs may use here; default: all installed")
    parser.add_argument("--shape", default="", help="network interfaces that runs may shape: eth1,ib0; default: none")
    parser.add_argument("--images", default="", help="beginnings of images that runs may use; default: no containers")
    parser.add_argument("--mounts", default="", help="directories that containers may see: /data; default: none")
    # expanduser, not Path.home(): a user in a container may have no home directory, and needs none with --state-dir.
    default = os.path.expanduser(os.environ.get("PARLAB_STATE_DIR") or "~/.local/state/parlab-node")
    parser.add_argument(
        "--state-dir", type=Path, default=Path(default), help="directory of the runs until they are shipped"
    )
    run_as = os.environ.get("PARLAB_RUN_AS", "")
    parser.add_argument("--run-as", default=run_as, help="account of the runs, with a daemon of root; default: its own")
    spot = os.environ.get("PARLAB_SPOT_NOTICE", "")
    parser.add_argument("--spot-notice", default=spot, help="file or http address that announces the end of the node")
    parser.add_argument("--no-measure", action="store_true", help="do not measure the processor while nothing trains")
    parser.add_argument("--slurm", action="store_true", help="submit runs as jobs of Slurm; --slots limits the jobs")
    parser.add_argument("--partition", help="with --slurm: partitions that runs may use, the default one first: a,b")
    kubernetes.add_options(parser, os.environ)
    options = parser.parse_args(arguments)
    if str(options.state_dir).startswith("~"):
        parser.error("this user has no home directory; set --state-dir or PARLAB_STATE_DIR")
    return options
