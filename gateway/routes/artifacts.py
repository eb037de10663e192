"""``/v1/runs/{run_id}/artifacts``: what a run left behind, listed and downloaded."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway import files
from gateway.answers import ArtifactPage, answer
from gateway.auth import principal_of
from gateway.connection import connection_of
from gateway.openapi import binary_answer, json_answer, problems
from gateway.routes.get import get
from gateway.routes.runs import RunId

__all__ = ["router"]

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@get(
    router,
    "/{run_id}/artifacts",
    responses={200: json_answer(ArtifactPage, "What it left, and what was left out."), **problems(400, 404, 503)},
)
async def list_artifacts(request: Request, run_id: RunId) -> Response:
    """The files that the run made or changed in its workspace. There are none before it has ended."""
    async with connection_of(request).within() as broker:
        record = await broker.runs.get(run_id)
    return answer(files.listing(record))


@get(
    router,
    "/{run_id}/artifacts/{name:path}",
    responses={
        200: binary_answer("The file, as a download."),
        206: binary_answer("The part of it that `Range` names."),
        304: {"description": "`If-None-Match` names it: the client has it."},
        416: {"description": "The range lies outside of the file; `Content-Range` has its size."},
        **problems(400, 404, 503),
    },
)
async def get_artifact(request: Request, run_id: RunId, name: str) -> Response:
    """One file, whole or a range of it. It never changes: its `ETag` is the SHA-256."""
    async with connection_of(request).within() as broker:
        record = await broker.runs.get(run_id)
        found = files.find(record, name)
        if request.method == "GET":
            await broker.ledger.audit.note("artifact", run_id=run_id, principal=principal_of(request), name=name)
    return await files.serve(request, broker.artifacts, run_id, found)
