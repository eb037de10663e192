"""A viewer of a run in the chat format: whatever ends its stream, it is told so, in one frame."""

from __future__ import annotations

from broker.api import Broker
from broker.records import RunRecord
from broker.viewer import Viewer
from gateway.chat.replies import Style, style_of
from gateway.formats.chat import ChatFormat

__all__ = ["ChatViewer", "chat_format", "format_of_run"]

_ENDS = {
    "gone": "The run is not known any more.",
    "failed": "The gateway failed to send this answer on.",
    "stalled": "Nothing of this answer was read for too long.",
    "memory": "This answer was read too slowly: the gateway had no more room for what waits.",
}


class ChatViewer(Viewer):
    """The format itself says it of what it is asked to render; the rest is said here."""

    __slots__ = ()

    def finish(self, reason: str) -> None:
        if not self.closed and reason in _ENDS and isinstance(self.format, ChatFormat):
            self.send(self.format.broken(_ENDS[reason]))
        super().finish(reason)


def chat_format(record: RunRecord) -> ChatFormat:
    """The format of that run: a run that no chat request made is spelt the legacy way."""
    return ChatFormat(record.run_id, record.session_id, style_of(record.metadata) or Style.LEGACY)


async def format_of_run(broker: Broker, run_id: str) -> ChatFormat:
    """Raises ``RunNotFound``, ``InvalidId``, ``StoreUnavailable``."""
    return chat_format(await broker.runs.get(run_id))
