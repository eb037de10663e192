"""Which slot of a Cluster a command belongs to: that of its first key. Pure.

Source of the rule: the Redis Cluster specification, “Key distribution model” and “Hash tags”: CRC16 of the key, or of
what stands in its first pair of braces, modulo 16384.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["SLOTS", "first_key", "slot_of", "tag_of"]

SLOTS = 16_384

_Arg = bytes | str | int | float
_KEYLESS = frozenset(
    {b"PING", b"ECHO", b"TIME", b"INFO", b"SCRIPT", b"CLIENT", b"CONFIG", b"CLUSTER", b"MULTI", b"EXEC", b"ACL"}
)
_SECOND = frozenset({b"XINFO", b"XGROUP", b"OBJECT", b"MEMORY", b"DEBUG"})
_COUNTED = frozenset({b"EVAL", b"EVALSHA"})
_STREAMS = frozenset({b"XREAD", b"XREADGROUP"})


def tag_of(key: bytes) -> bytes:
    """The part of a key that decides about its slot."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    return key[start + 1 : end] if end > start + 1 else key


def slot_of(key: bytes) -> int:
    return crc_hqx(tag_of(key), 0) % SLOTS


def first_key(command: Sequence[_Arg]) -> bytes | None:
    """The first key of a command; ``None`` where it has none, so that any node may answer it."""
    name = _bytes(command[0]).upper()
    if name in _KEYLESS:
        return None
    if name in _STREAMS:
        return next((_bytes(key) for word, key in pairwise(command) if _bytes(word).upper() == b"STREAMS"), None)
    place = 1
    if name in _COUNTED:
        place = 3 if int(command[2]) else len(command)
    elif name in _SECOND:
        place = 2
    return _bytes(command[place]) if place < len(command) else None


def _bytes(arg: _Arg) -> bytes:
    return arg if isinstance(arg, bytes) else str(arg).encode()
