"""A door in front of a server that can be shut in every way in which servers go away."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal
from urllib.parse import urlsplit

Mode = Literal["open", "refuse", "hang", "bad gateway", "lost answer"]
_BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 7\r\n\r\n<html/>"


class Gate:
    """Forwards connections to a server, unless it is shut."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (str(parts.hostname), int(parts.port or 80))
        self._mode: Mode = "open"
        self._sockets: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self._port = 0
        self._listen()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def set(self, mode: Mode) -> None:
        """Shut or open the gate; connections that are open are cut."""
        self._mode = mode
        if mode == "refuse" and self._listener is not None:
            # A listener that is only closed accepts one more connection while a thread waits in accept.
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for each in self._sockets:
            _close(each)
        self._sockets.clear()
        if mode != "refuse" and self._listener is None:
            self._listen()

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            if self._mode != "hang":
                threading.Thread(target=self._serve, args=(client, self._mode), daemon=True).start()

    def _serve(self, client: socket.socket, mode: Mode) -> None:
        with suppress(OSError):
            if mode == "bad gateway":
                client.recv(1 << 16)
                client.sendall(_BAD_GATEWAY)
                client.shutdown(socket.SHUT_WR)
                return
            server = socket.create_connection(self._server)
            self._sockets.append(server)
            threading.Thread(target=_pump, args=(client, server), daemon=True).start()
            if mode == "lost answer":
                server.recv(1)  # the server has done the work by now
                _close(server)
                _close(client)
            else:
                _pump(server, client)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    _close(target)


def _close(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextmanager
def gate(url: str) -> Iterator[Gate]:
    """Put a gate before a server; it ends with the block."""
    door = Gate(url)
    try:
        yield door
    finally:
        door.set("refuse")
