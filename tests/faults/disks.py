"""Small file systems in memory that can be filled; without the right to mount them, plain directories."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

SIZE_MIB = 48
POSTGRES_MIB = 400
CHUNK = bytes(1 << 16)


class Disk:
    """A directory with a file system of its own."""

    def __init__(self, path: Path, size_mib: int = SIZE_MIB) -> None:
        self.path, self._size_mib = path, size_mib
        self.is_mounted = False
        self._filler = path / "filler"

    def mount(self) -> None:
        self.path.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size_mib}m,mode=755", "parlab-faults", str(self.path)]
        self.is_mounted = (
            os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
        )

    def fill(self) -> None:
        """Leave not a byte free."""
        descriptor = os.open(self._filler, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        chunk = CHUNK
        try:
            while chunk:
                try:
                    os.write(descriptor, chunk)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    chunk = chunk[: len(chunk) // 2]
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Undo all faults of this disk: make it writable and delete what fills it."""
        if self.is_mounted:
            self.make_writable()
        self._filler.unlink(missing_ok=True)

    def make_read_only(self) -> None:
        """Let every write fail; refused by the kernel while a file is open for writing."""
        self._remount("ro")

    def make_writable(self) -> None:
        self._remount("rw")

    def _remount(self, option: str) -> None:
        command = ["mount", "-o", f"remount,{option}", str(self.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")

    def unmount(self) -> None:
        """Unmount as soon as the last process has closed its files."""
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)
            self.is_mounted = False
