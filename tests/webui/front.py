"""What a front end of the WebUI sends, as JSON."""

from __future__ import annotations

from typing import Any

from tests.e2e.processes import http_json
from tests.gateways import GatewayProcess

__all__ = ["Front"]


class Front:
    """What a front end sends."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.port = gateway.port

    async def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        return await http_json(self.port, "POST", path, body, headers)

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await http_json(self.port, "GET", path, headers=named)

    async def start(self, session_id: str, message: str = "hello", **more: Any) -> tuple[int, Any]:
        body = {"session_id": session_id, "message": message, "runner": "scripted", **more}
        return await self.post("/api/chat/start", body)

    async def begun(self, session_id: str, script: str, **more: Any) -> str:
        status, answer = await self.start(session_id, metadata={"script": script}, **more)
        assert status == 200, answer
        return str(answer["stream_id"])

    async def status(self, stream_id: str) -> Any:
        status, answer = await self.get(f"/api/chat/stream/status?stream_id={stream_id}")
        assert status == 200
        return answer
