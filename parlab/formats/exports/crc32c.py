"""The masked CRC-32C of the files of TensorFlow, LevelDB and RocksDB."""

from __future__ import annotations

_POLYNOMIAL = 0x82F63B78


def _entry(index: int) -> int:
    for _ in range(8):
        index = index >> 1 ^ (_POLYNOMIAL if index & 1 else 0)
    return index


_TABLE = [_entry(index) for index in range(256)]


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of data, masked as it is stored beside them."""
    crc = 0xFFFF_FFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFF_FFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF
