"""The chat runtime: ``/chat`` and ``/v1/chat``, streamed and not. docs/chat.md is its contract."""
