"""A directory is packed for an import: links are left out, and what they lead to inside is there once."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from parlab.client.server.packing import pack


def test_links_are_left_out_and_named(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("private")
    folder = tmp_path / "wandb"
    (folder / "run-1").mkdir(parents=True)
    (folder / "run-1" / "run.wandb").write_bytes(b":W&B")
    (folder / "latest-run").symlink_to("run-1")
    (folder / "debug.log").symlink_to("run-1/run.wandb")
    (folder / "out").symlink_to(secret)
    (folder / "run-1" / "key").symlink_to(secret / "key")
    links = pack(folder, tmp_path / "packed.tar.gz")
    assert links == ["debug.log", "latest-run", "out", "run-1/key"]
    with tarfile.open(tmp_path / "packed.tar.gz") as archive:
        assert archive.getnames() == ["wandb/run-1/run.wandb"]


def test_a_link_as_the_directory_itself_is_followed(tmp_path: Path) -> None:
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "a.log").write_text("a")
    os.link(tmp_path / "run-1" / "a.log", tmp_path / "run-1" / "b.log")  # a second name is a file like any other
    (tmp_path / "latest-run").symlink_to("run-1")
    assert pack(tmp_path / "latest-run", tmp_path / "packed.tar.gz") == []
    with tarfile.open(tmp_path / "packed.tar.gz") as archive:
        assert {entry.name: entry.size for entry in archive} == {"run-1/a.log": 1, "run-1/b.log": 1}
