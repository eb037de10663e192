"""What a process counts, as Prometheus reads it; and several processes behind one port, read as one.

Processes that share a listening socket cannot be told apart by whoever scrapes it: each scrape would reach another one,
and every counter would jump. There prometheus_client keeps its values in files of a shared directory, which is what
``PROMETHEUS_MULTIPROC_DIR`` (its own variable) says, and whichever process is asked adds all of them up.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from broker import metrics

__all__ = ["CONTENT_TYPE", "exposition", "introduce", "shared_by_processes"]

CONTENT_TYPE = CONTENT_TYPE_LATEST
_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
_LIVE = re.compile(r"gauge_live[a-z]+_(\d+)\.db\Z")


def exposition() -> bytes:
    """Everything that is counted, in Prometheus' text format: by this process, or by all that share its directory."""
    directory = os.environ.get(_DIRECTORY)
    if directory is None:
        return generate_latest(REGISTRY)
    _forget_dead(Path(directory))
    registry = CollectorRegistry()
    MultiProcessCollector(registry, directory)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


@contextmanager
def shared_by_processes() -> Iterator[None]:
    """Processes that are started inside count together. A directory that the operator has named stays his."""
    if _DIRECTORY in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="runcast-metrics-", ignore_cleanup_errors=True) as directory:
        os.environ[_DIRECTORY] = directory
        try:
            yield
        finally:
            del os.environ[_DIRECTORY]


def _forget_dead(directory: Path) -> None:
    """What a process that is gone had open (viewers, connections) is open no more. What it counted stays counted."""
    for pid in {int(found[1]) for path in directory.iterdir() if (found := _LIVE.match(path.name))}:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            mark_process_dead(pid, str(directory))  # type: ignore[no-untyped-call]
        except PermissionError:
            continue  # it lives, as somebody else


def introduce() -> None:
    """What a process does before it counts: it tells which version it is (``runcast_build_info``), and leaves out when
    each series began (``_created``), which Prometheus would take for twice as many series."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        ours = version("runcast")
    except PackageNotFoundError:  # run from a source tree that was not installed
        ours = "0"
    metrics.BUILD.labels(ours).set(1)
