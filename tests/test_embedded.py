"""The embedded Redis: messages that were taken leave its disk, too."""

from __future__ import annotations

from pathlib import Path

import redis

from parlab.embedded import free_port
from tests.conftest import start_redis
from tests.patience import wait_for

BATCH = bytes(1 << 20)


def test_the_file_of_redis_stays_small_however_many_messages_pass_through(tmp_path: Path) -> None:
    """On a small disk its history would fill the disk, and Redis would refuse every message from then on."""
    port = free_port()
    process = start_redis(port, tmp_path)
    try:
        with redis.Redis(port=port) as client:
            for _ in range(3):
                for _ in range(12):
                    client.lpush("queue", BATCH)
                    assert client.rpop("queue") == BATCH
                wait_for(lambda: size_of(tmp_path) < 8 << 20, "a file without what was taken")
            client.lpush("queue", b"one that waits")
            assert client.lrange("queue", 0, -1) == [b"one that waits"]
    finally:
        process.kill()
        process.wait()


def size_of(directory: Path) -> int:
    """Return the size of the files of Redis; one that it has just replaced counts nothing."""
    size = 0
    for path in directory.rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return size
