"""The uvicorn target: ``uvicorn gateway.asgi:app``. Made on the first call, so that importing does no work."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from gateway.app import Gateway, create_app

__all__ = ["app"]


class _Lazy:
    def __init__(self) -> None:
        self._gateway: Gateway | None = None

    @property
    def gateway(self) -> Gateway:
        if self._gateway is None:
            self._gateway = create_app()
        return self._gateway

    @property
    def always_chunked(self) -> bool:
        return self.gateway.always_chunked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.gateway(scope, receive, send)

    def drain(self) -> None:
        if self._gateway is not None:
            self._gateway.drain()


app = _Lazy()
