"""Where watched repositories may be: allowed protocols, addresses and directories, and no redirects."""

from __future__ import annotations

import http.server
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parlab.watch.commits import log_of
from parlab.watch.repository_addresses import check_repository, git_settings


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository that a web server can offer as plain files."""
    path = tmp_path / "allowed" / "code"
    path.mkdir(parents=True)
    for arguments in (
        ["init", "--quiet", "--initial-branch", "main"],
        ["-c", "user.name=ada", "-c", "user.email=ada@host", "commit", "--quiet", "--allow-empty", "-m", "First"],
        ["update-server-info"],
    ):
        subprocess.run(["git", "-C", str(path), *arguments], check=True)
    return path


class Offering(http.server.SimpleHTTPRequestHandler):
    """Offers files; below /moved/ it redirects to them."""

    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(self.path)
        if self.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", f"http://{self.headers['Host']}{self.path[6:]}")
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def offered(repository: Path) -> Iterator[str]:
    """The address of a web server with the repository, at a name of this machine."""

    def handler(*arguments: Any) -> Offering:
        return Offering(*arguments, directory=str(repository))

    Offering.seen = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("address", ["git://host.example/code", "http://host.example/code"])
def test_other_protocols_need_the_setting(address: str, settings: Any) -> None:
    with pytest.raises(ValueError, match="is not allowed here; use https, ssh, or set PARLAB_WATCH_PROTOCOLS"):
        check_repository(address)
    settings.WATCH_PROTOCOLS = ["git", "http"]
    assert check_repository(address).host == "host.example"


def test_paths_are_refused_unless_they_lie_below_a_directory_of_the_setting(
    repository: Path, tmp_path: Path, settings: Any
) -> None:
    for paths in ([], [str(tmp_path / "allow")], [str(repository / "deeper")]):
        settings.WATCH_PATHS = paths
        with pytest.raises(ValueError, match="no directory of PARLAB_WATCH_PATHS"):
            log_of(str(repository), "main", tmp_path / "mirror")
    settings.WATCH_PATHS = [str(tmp_path / "allowed")]
    assert [commit.subject for commit in log_of(str(repository), "main", tmp_path / "mirror")] == ["First"]
    (tmp_path / "allowed" / "link").symlink_to(tmp_path)
    for outside in (f"{tmp_path}/allowed/../other", f"{tmp_path}/allowed/link/other"):
        with pytest.raises(ValueError, match="PARLAB_WATCH_PATHS"):
            check_repository(outside)


@pytest.mark.parametrize(
    "address",
    ["https://127.0.0.1:1/code", "https://[::1]/code", "ssh://git@10.0.0.7:2222/code", "git@169.254.169.254:latest"],
)
def test_addresses_inside_of_the_network_are_refused_before_git_connects(address: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no public address; add its network to PARLAB_WATCH_NETWORKS"):
        log_of(address, "main", tmp_path / "mirror")
    assert not (tmp_path / "mirror").exists()


def test_an_allowed_network_is_reached_and_its_redirects_are_not_followed(
    offered: str, tmp_path: Path, settings: Any
) -> None:
    settings.WATCH_PROTOCOLS, settings.WATCH_NETWORKS = ["http"], ["127.0.0.0/8", "::1"]
    assert [commit.subject for commit in log_of(f"{offered}/.git", "main", tmp_path / "mirror")] == ["First"]
    Offering.seen.clear()
    with pytest.raises(ValueError, match="git cannot read the repository"):
        log_of(f"{offered}/moved/.git", "main", tmp_path / "moved")
    assert [path for path in Offering.seen if not path.startswith("/moved/")] == []


@pytest.mark.parametrize(
    "address",
    [
        "https://Evil.example/code",
        "git@Evil.example:code",
        "https://fa\u00df.example/code",
        "https://a.example:0443/code",
    ],
)
def test_a_host_in_another_spelling_than_git_looks_up_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="lower case and ASCII"):
        check_repository(address)


def test_git_connects_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parlab.watch.repository_addresses.addresses_of", lambda *_: ["192.0.2.7"])
    web = git_settings(check_repository("https://git.example/code"))
    assert "git.example:443:192.0.2.7" in web.values()
    assert web["GIT_ALLOW_PROTOCOL"] == "https"
    ssh = git_settings(check_repository("ssh://git@git.example:2222/code"))["GIT_SSH_COMMAND"]
    assert "-oHostName=192.0.2.7 -oHostKeyAlias=[git.example]:2222" in ssh
