"""What a server's error replies mean to a caller: later, elsewhere, or refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis.exceptions import AskError, ClusterDownError, InvalidResponse, RedisError, ResponseError, TryAgainError

from broker.connections import reply_text
from broker.errors import StoreError, StoreUnavailable

__all__ = ["Moving", "Refused", "error_of", "is_spent", "redirect_of"]

_SPENT = frozenset({"LOADING", "READONLY", "MASTERDOWN", "UNBLOCKED", "NOREPLICAS", "MISCONF", "OOM", "BUSY"})
"""Replies that say: later, or another server. The connection is closed, so that the next one is made anew (a promoted
replica is found through its name)."""
_NOT_NOW = _SPENT | {"CLUSTERDOWN"}
_MOVING = frozenset({"TRYAGAIN", "ASK"})


class Refused(StoreError):
    """Redis answered with an error: ``reply`` is its text, ``kind`` the first word of it (``NOGROUP``, ``ERR`` …)."""

    def __init__(self, reply: str, shown: str) -> None:
        super().__init__(f"{shown} refused a command: {reply}")
        self.reply = reply
        self.kind = reply.partition(" ")[0]


class Moving(StoreUnavailable):
    """A slot is on its way to another node, so that its keys lie in two places for a while. Nothing was done."""


def is_spent(replies: Iterable[Any]) -> bool:
    """Whether a reply among them makes the connection useless."""
    return any(isinstance(reply, ResponseError) and _spends(reply_text(reply) or "") for reply in replies)


def _spends(reply: str) -> bool:
    return reply.partition(" ")[0] in _SPENT or reply == "ERR max number of clients reached"


def redirect_of(replies: Iterable[Any]) -> ResponseError | None:
    """The first reply that says that a Cluster did nothing of this here and now: MOVED, ASK, TRYAGAIN, CLUSTERDOWN."""
    for reply in replies:
        if isinstance(reply, (AskError, TryAgainError, ClusterDownError)):
            return reply
    return None


def error_of(error: RedisError, shown: str, what: str) -> StoreUnavailable | StoreError:
    """``what`` says what the error means where it is none of the server's."""
    reply = reply_text(error)
    if reply is None:
        if isinstance(error, InvalidResponse):
            what, error = "what answers there does not speak the protocol of Redis", RedisError("its reply is no RESP")
        return StoreUnavailable(f"{shown}: {what} ({error})")
    kind = reply.partition(" ")[0]
    if kind in _MOVING:
        return Moving(f"{shown} is moving what was asked for: {reply}")
    if kind in _NOT_NOW or _spends(reply):
        return StoreUnavailable(f"{shown} cannot serve now: {reply}")
    if kind == "MOVED":
        reply += " (it is a node of a Cluster: the URL begins with redis+cluster:// or rediss+cluster://)"
    return Refused(reply, shown)
