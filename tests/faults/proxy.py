"""A TCP proxy between a node and Redis that can cut or slow down the connection."""

from __future__ import annotations

import asyncio
import contextlib
import threading

CHUNK_BYTES = 64 << 10


class Proxy:
    """Forwards connections from a loopback port to another; runs in a thread of its own."""

    def __init__(self, port: int, target_port: int) -> None:
        self.port, self._target_port = port, target_port
        self.is_cut = False
        self.delay_s = 0.0
        """Delay of each chunk, in both directions."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def cut(self) -> None:
        """Close all connections, and new ones at once, until `restore`."""
        self.is_cut = True
        self._loop.call_soon_threadsafe(self._close_all)

    def restore(self) -> None:
        self.is_cut, self.delay_s = False, 0.0

    def stop(self) -> None:
        """Close all connections and end the thread."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._close_all()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self.port)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.close()
            return
        try:
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, target_writer}
        await asyncio.gather(self._copy(reader, target_writer), self._copy(target_reader, writer))
        self._writers -= {writer, target_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()

    def _close_all(self) -> None:
        for writer in self._writers:
            # Without waiting for what is still to be sent: the peer sees a reset.
            writer.transport.abort()
