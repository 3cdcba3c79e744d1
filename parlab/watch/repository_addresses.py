"""Where a watched repository may be: protocols, networks and directories that the settings allow.

git resolves names itself, so it is told the address that was checked; it follows no redirect.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from django.conf import settings

from parlab.notify.sending import addresses_of

PORTS = {"https": 443, "http": 80, "ssh": 22, "git": 9418}
_ADDRESS = re.compile(r"(?:https?|ssh|git)://[^\s]{1,480}|[\w.-]{1,80}@[\w.-]{1,200}:[^\s]{1,300}|/[^\0\n]{1,480}")
_CREDENTIALS = re.compile(r"https?://[^/?#]*@|\w+://[^/?#@]*:[^/?#@]*@", re.IGNORECASE)


class Place(NamedTuple):
    """The host of a repository; `protocol` is `file` for one on the server's disk."""

    protocol: str
    host: str = ""
    port: int = 0


def check_repository(address: str) -> Place:
    """Return where a repository is; raise ValueError for what is no address, or not allowed."""
    if not _ADDRESS.fullmatch(address):
        raise ValueError(
            f"repository {address[:80]!r} is no address of a git repository; use /a/path, https://host/path or"
            " git@host:path"
        )
    if _CREDENTIALS.match(address):
        # Everyone may read the address of a watch.
        raise ValueError(
            "repository contains a password or a token; let the server's git authenticate instead, with an SSH key or a"
            " credential helper"
        )
    if address.startswith("/"):
        _check_path(address)
        return Place("file")
    place = _place(address)
    if place.protocol not in settings.WATCH_PROTOCOLS:
        allowed = ", ".join(settings.WATCH_PROTOCOLS)
        raise ValueError(f"protocol {place.protocol} is not allowed here; use {allowed}, or set PARLAB_WATCH_PROTOCOLS")
    # git looks up the host as it is written here: another spelling would evade the address that was checked.
    authority = (address.partition("://")[2].partition("/")[0] or address.partition(":")[0]).rpartition("@")[2]
    if not address.isascii() or authority != authority.lower() or ":0" in authority.rpartition("]")[2]:
        raise ValueError(
            f"the host of repository {address[:80]!r} is not in lower case and ASCII, or its port begins with 0;"
            " use https://host/path, with punycode for other letters"
        )
    return place


def _check_path(address: str) -> None:
    path = Path(address).resolve()
    if not any(path.is_relative_to(Path(allowed).resolve()) for allowed in settings.WATCH_PATHS):
        raise ValueError(
            f"repository {address[:80]!r} is on the disk of the server, in no directory of PARLAB_WATCH_PATHS; use"
            " https://host/path or git@host:path"
        )


def _place(address: str) -> Place:
    if "://" not in address:
        return Place("ssh", address.partition("@")[2].partition(":")[0], PORTS["ssh"])
    try:
        parts = urlsplit(address)
        return Place(parts.scheme, parts.hostname or "", parts.port or PORTS[parts.scheme])
    except ValueError as error:
        raise ValueError(f"repository {address[:80]!r} is invalid ({error}); use https://host/path") from error


def git_settings(place: Place) -> dict[str, str]:
    """Return the environment with which git reaches only this place; raise ValueError if it is not allowed."""
    options = {"safe.directory": "*", "http.followRedirects": "false"}
    environment = {"GIT_ALLOW_PROTOCOL": place.protocol}
    if place.protocol != "file":
        address = _checked_address(place)
        literal = f"[{address}]" if ":" in address else address
        options["http.curloptResolve"] = f"{place.host}:{place.port}:{literal}"
        known = place.host if place.port == PORTS["ssh"] else f"[{place.host}]:{place.port}"
        environment["GIT_SSH_COMMAND"] = (
            f"ssh -oBatchMode=yes -oHostName={address} -oHostKeyAlias={known} -oProxyJump=none -oProxyCommand=none"
        )
        if place.protocol == "git":
            options[f"url.git://{literal}:{place.port}/.insteadOf"] = f"git://{place.host}:{place.port}/"
            options[f"url.git://{literal}/.insteadOf"] = f"git://{place.host}/"
            environment["GIT_OVERRIDE_VIRTUAL_HOST"] = place.host
    environment["GIT_CONFIG_COUNT"] = str(len(options))
    for number, (key, value) in enumerate(options.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return environment


def _checked_address(place: Place) -> str:
    networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network] = [
        ipaddress.ip_network(text, strict=False) for text in settings.WATCH_NETWORKS
    ]
    try:
        return addresses_of(place.host, place.port, networks, "PARLAB_WATCH_NETWORKS")[0]
    except (OSError, UnicodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise ValueError(f"host {place.host[:80]!r} cannot be resolved ({reason}); check the address") from problem
