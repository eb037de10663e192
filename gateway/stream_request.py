"""What a viewer asks of the stream route: path, query and headers, checked before anything is looked up."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.types import Scope

from broker.cursor import Start, choose
from broker.errors import BadRequest
from broker.ids import check_id
from broker.items import Mode, parse_modes
from gateway.formats import Format, get_format

__all__ = ["StreamRequest", "parse_request", "run_id_of"]

_PREFIXES, _SUFFIX = ("/v1/runs/", "/v1/tasks/"), "/stream"
_FIELDS_MAX = 100
_FLAGS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
    "": False,
}


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What a viewer asks for, checked."""

    run_id: str
    modes: Mode
    format: Format
    cursor: str | None
    start: Start
    compact: bool
    cancel_token: str | None
    owns: bool


def run_id_of(scope: Scope) -> str | None:
    """The run whose stream a request is for (a task is one); ``None``: it is for another route."""
    path: str = scope["path"]
    if scope["method"] not in ("GET", "HEAD"):
        return None
    root = scope.get("root_path", "")
    if root and path.startswith(root):
        path = path[len(root) :]
    prefix = next((known for known in _PREFIXES if path.startswith(known)), None)
    if prefix is None or not path.endswith(_SUFFIX):
        return None
    run_id = path[len(prefix) : -len(_SUFFIX)]
    return run_id if run_id and "/" not in run_id else None


def parse_request(run_id: str, scope: Scope) -> StreamRequest:
    """Raises ``BadRequest``, naming the field and what is allowed."""
    check_id(run_id, "run_id")
    query = _query(scope["query_string"])
    header = _header(scope, b"last-event-id")
    token = _header(scope, b"x-cancel-token") or _one(query, "cancel_token")
    return StreamRequest(
        run_id=run_id,
        modes=parse_modes(query.get("modes", ())),
        format=get_format(_one(query, "format") or "native"),
        cursor=choose(header, ",".join(query["cursor"]) if "cursor" in query else None),
        start=_start(_one(query, "from")),
        compact=_flag(query, "compact"),
        cancel_token=token or None,
        owns=_owns(_one(query, "on_disconnect"), token),
    )


def _query(raw: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError:
        raise BadRequest(f"the query has too many fields: {_FIELDS_MAX} are allowed", field="query") from None


def _header(scope: Scope, name: bytes) -> str | None:
    """A header's value; several are joined, as HTTP says, so that two cursors are not silently one."""
    values = [value for key, value in scope["headers"] if key == name]
    return b",".join(values).decode("latin-1") if values else None


def _one(query: dict[str, list[str]], name: str) -> str:
    values = query.get(name, [])
    if len(set(values)) > 1:
        raise BadRequest(f"{name} is given {len(values)} times, with different values: give it once", field=name)
    return values[0].strip() if values else ""


def _start(value: str) -> Start:
    try:
        return Start(value or "start")
    except ValueError:
        raise BadRequest(f"from={value[:64]!r} is not allowed: it is “start” or “now”", field="from") from None


def _flag(query: dict[str, list[str]], name: str) -> bool:
    value = _one(query, name).lower()
    if value not in _FLAGS:
        raise BadRequest(f"{name}={value[:64]!r} is not allowed: it is 1 or 0", field=name)
    return _FLAGS[value]


def _owns(value: str, token: str | None) -> bool:
    if value in ("", "nothing"):
        return False
    if value != "cancel":
        raise BadRequest(
            f"on_disconnect={value[:64]!r} is not allowed: it is “cancel” or “nothing”", field="on_disconnect"
        )
    if not token:
        raise BadRequest("on_disconnect=cancel needs the run's cancel token", field="cancel_token")
    return True
