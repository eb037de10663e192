"""One provider's response, from bytes to items: the decoder and the adapter, put together."""

from __future__ import annotations

from broker.items import Event, Item
from workers.providers.adapter import Adapter, ProviderError
from workers.providers.decoding import DONE, LIMIT, Mended, Piece, StreamDecoder, Unreadable
from workers.providers.halves import Halves

__all__ = ["ProviderStream"]


class ProviderStream:
    """``feed`` bytes as they arrive, ``close`` at their end; both give items, and raise nothing whatever the bytes.

    Something unreadable ends the response with ``error``: text behind a hole would look whole. What came before
    stays. The adapter's own ``error`` shows here as well; of several the first counts.
    """

    def __init__(self, adapter: Adapter, round: int = 1, limit: int = LIMIT) -> None:
        self.adapter = adapter
        self.error: ProviderError | None = None
        self._round = round
        self._decoder = StreamDecoder(limit)
        self._halves = Halves()
        self._mended = False
        self._stopped = False
        self._hears_done: bool = getattr(adapter, "hears_done", False)

    def feed(self, chunk: bytes) -> list[Item]:
        return [] if self._stopped else self._read(self._decoder.feed(chunk))

    def close(self) -> list[Item]:
        """Call once. Without the provider's terminal event, ``error`` is ``incomplete_stream`` afterwards."""
        items = [] if self._stopped else self._read(self._decoder.close())
        items += self._halves.close() + self._halves.read(self.adapter.close())
        self.error = self.error or self.adapter.error
        return items

    def _read(self, pieces: list[Piece]) -> list[Item]:
        items: list[Item] = []
        adapter = self.adapter
        for piece in pieces:
            if isinstance(piece, Unreadable):
                items.append(self._unreadable(piece))
                if self._stopped:
                    break
            elif piece.event != DONE or self._hears_done:
                told = adapter.feed(piece.event, piece.data)
                # JSON that was read strictly has no halves in it; those that came before turn up whenever.
                self._mended = self._mended or piece.__class__ is Mended
                if self._mended:
                    told = self._halves.read(told)
                items += told
                self.error = self.error or adapter.error
        return items

    def _unreadable(self, piece: Unreadable) -> Event:
        facts = {"round": self._round, "code": piece.code, "message": piece.message, "excerpt": piece.excerpt}
        if piece.code == "truncated":
            # The bytes ended in the middle: whether anything is missing is for the adapter to say.
            return Event(name="provider.event", payload=facts)
        self._stopped = True
        if self.error is not None:  # the provider's own error came first
            return Event(name="provider.event", payload=facts)
        self.error = ProviderError(piece.code, piece.message)
        return Event(name="model.failed", payload=facts)
