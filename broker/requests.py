"""What somebody asks for when they start a run: the body of ``POST /v1/runs``, and its checks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from broker.artifacts import InboundArtifact
from broker.errors import InvalidRequest, ItemTooBig
from broker.ids import check_id
from broker.task_model import TASK_RUNNER

__all__ = ["RunInput", "RunRequest", "check_names", "parse_request"]

_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_NAME_MAX = 256
_TOOLSETS_MAX = 64


class RunInput(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What the runner is given. ``approvals``: ``yolo`` runs every tool, ``ask`` asks before each dangerous one.

    ``artifacts`` are files for its workspace; ``attachments`` are passed on as they are by a runner that relays to a
    service with attachments of its own. ``task``: of a task's own run, what was asked for; ``broker.tasks`` makes it.
    """

    message: str
    model: str | None = None
    provider: str | None = None
    toolsets: list[str] | None = None
    max_turns: _Positive | None = None
    approvals: Literal["yolo", "ask"] = "yolo"
    artifacts: list[InboundArtifact] | None = None
    attachments: list[Any] | None = None
    task: dict[str, Any] | None = None


class RunRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A run to be made. Options of runners other than Hermes go into ``metadata``. ``deadline_s`` is in seconds.

    ``parent_run_id``: the run of which this one does a part; ``component``: which part (``step:2``). Its items say so.
    """

    input: RunInput
    runner: _Name = "hermes"
    session_id: str | None = None
    metadata: dict[str, str] = {}
    on_worker_lost: Literal["fail", "retry"] = "fail"
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=31_536_000)] | None = None
    parent_run_id: str | None = None
    component: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")] | None = None

    def check(self, max_bytes: int) -> None:
        """What the types do not say. ``max_bytes`` bounds the request as it is stored.

        Raises ``InvalidRequest`` (an empty message, too long a name), ``InvalidId`` (the session's), ``ItemTooBig``.
        """
        if not self.input.message.strip():
            raise InvalidRequest("the message is empty: say what the run is to do", field="input.message")
        if self.session_id is not None:
            check_id(self.session_id, "session_id")
        if self.parent_run_id is not None:
            check_id(self.parent_run_id, "parent_run_id")
        if (self.runner == TASK_RUNNER) != (self.input.task is not None):
            raise InvalidRequest("the runner “task” is that of tasks: make one with POST /v1/tasks", field="runner")
        message = len(self.input.message.encode("utf-8", "surrogatepass"))
        if message > max_bytes:
            raise ItemTooBig(f"the message has {message} bytes, {max_bytes} are allowed", field="input.message")
        check_names(self.input.model, self.input.provider, self.input.toolsets, within="input.")
        whole = len(self.encoded())
        if whole > 2 * max_bytes:
            inline = any(artifact.content_base64 for artifact in self.input.artifacts or ())
            field = "input.artifacts" if inline else "metadata"
            raise ItemTooBig(f"the request has {whole} bytes, {2 * max_bytes} are allowed", field=field)

    def encoded(self) -> bytes:
        """Its one JSON form, without what is as by default: requests that mean the same have the same.

        A field that a later version adds, at its default, does not change it. Raises ``InvalidRequest``.
        """
        try:
            whole = msgspec.to_builtins(self)
            whole["input"] = _stated(whole["input"], _DEFAULTS["input"])
            return msgspec.json.encode(_stated(whole, _DEFAULTS), order="deterministic")
        except (UnicodeEncodeError, TypeError, RecursionError, msgspec.MsgspecError) as error:
            raise InvalidRequest(f"the request has a value that JSON cannot carry: {error}") from error

    def digest(self) -> str:
        """SHA-256 of that form: what an idempotency key is bound to."""
        return hashlib.sha256(self.encoded()).hexdigest()


def check_names(model: str | None, provider: str | None, toolsets: Sequence[str] | None, *, within: str = "") -> None:
    """They are copied into records, audit and logs, which are bounded because names are.

    ``within`` stands ahead of the field's name in the ``InvalidRequest`` that is raised.
    """
    toolsets = toolsets or ()
    if len(toolsets) > _TOOLSETS_MAX:
        wrong = f"there are {len(toolsets)} toolsets, {_TOOLSETS_MAX} are allowed"
        raise InvalidRequest(wrong, field=f"{within}toolsets")
    for field, name in (("model", model), ("provider", provider), *(("toolsets", one) for one in toolsets)):
        if name is not None and len(name) > _NAME_MAX:
            wrong = f"a name of {len(name)} characters: {_NAME_MAX} are allowed"
            raise InvalidRequest(wrong, field=f"{within}{field}")


def _stated(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


_DEFAULTS: dict[str, Any] = msgspec.to_builtins(RunRequest(input=RunInput(message="")))
_decoder = msgspec.json.Decoder(RunRequest)


def parse_request(body: bytes) -> RunRequest:
    """The JSON body → the request, unchecked beyond its types. Raises ``InvalidRequest`` naming the field."""
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        raise InvalidRequest(str(error), field=path.strip(".`") or None if reason else None) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from error
