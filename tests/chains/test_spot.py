"""The notice that a node is taken away: a file, and an address of a cloud's metadata on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from runners.node.spot import SpotNotice, read_place


class Metadata:
    """A cloud's metadata: `answers` are (status, text) by path."""

    def __init__(self) -> None:
        answers = self.answers = dict[str, tuple[int, str]]()
        self.asked = asked = list[tuple[str, str, dict[str, str]]]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append((self.command, self.path, dict(self.headers)))
                status, text = answers.get(self.path, (404, ""))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            do_PUT = do_GET  # the name that http.server looks for

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    metadata = Metadata()
    yield metadata
    metadata.server.shutdown()
    metadata.server.server_close()


def test_a_file_is_a_notice_as_soon_as_it_exists(tmp_path: Path) -> None:
    spot = SpotNotice(str(tmp_path / "notice"))
    assert spot.read() == ""
    (tmp_path / "notice").write_text("back in an hour\n")
    assert spot.read() == "back in an hour"
    (tmp_path / "notice").write_text("")
    assert spot.read() == "without a text"


AZURE = '{"Events": [{"EventType": "Freeze"}, {"EventType": "Preempt", "NotBefore": "12:00"}]}'


@pytest.mark.parametrize(
    ("answer", "notice"),
    [
        ((404, "not found"), ""),
        ((200, "FALSE"), ""),
        ((200, "TRUE"), "TRUE"),
        ((200, '{"action": "terminate", "time": "12:00"}'), '{"action": "terminate", "time": "12:00"}'),
        ((200, '{"DocumentIncarnation": 1, "Events": []}'), ""),
        ((200, AZURE), "Preempt 12:00"),
        ((500, "oops"), ""),
    ],
)
def test_each_cloud_has_its_own_answer(metadata: Metadata, answer: tuple[int, str], notice: str) -> None:
    metadata.answers["/spot"] = answer
    assert SpotNotice(f"{metadata.address}/spot").read() == notice
    assert metadata.asked[0][2]["Metadata-Flavor"] == "Google"


def test_aws_may_require_a_token(metadata: Metadata) -> None:
    metadata.answers |= {"/spot": (401, ""), "/latest/api/token": (200, "a-token")}
    assert SpotNotice(f"{metadata.address}/spot").read() == ""
    assert [asked[:2] for asked in metadata.asked] == [("GET", "/spot"), ("PUT", "/latest/api/token"), ("GET", "/spot")]
    headers = {name.lower(): value for name, value in metadata.asked[2][2].items()}
    assert headers["x-aws-ec2-metadata-token"] == "a-token"


def test_nobody_at_the_address_is_no_notice() -> None:
    assert SpotNotice("http://127.0.0.1:1/spot").read() == ""


def test_another_place_is_refused() -> None:
    assert read_place("") is None
    with pytest.raises(ValueError, match="invalid --spot-notice 'notice'; use the absolute path"):
        read_place("notice")
