"""Counters and gauges of the worker, in the process's default Prometheus registry."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

__all__ = [
    "ARTIFACTS_RECEIVED",
    "ARTIFACTS_REFUSED",
    "ARTIFACTS_REMOVED",
    "ARTIFACTS_SKIPPED",
    "ARTIFACTS_STORED",
    "ARTIFACT_BYTES",
    "BEATS_FAILED",
    "CHECKPOINTS_FAILED",
    "CLAIMS",
    "CLAIMS_REFUSED",
    "COST",
    "FENCED",
    "FIRST_TOKEN",
    "INPUT_ASKED",
    "INPUT_OPEN",
    "INPUT_SETTLED",
    "INPUT_WAIT",
    "ITEMS",
    "KILLED",
    "LOST_OUTCOMES",
    "NOTICES",
    "OUTCOMES",
    "PROCESSES",
    "QUEUE_WAIT",
    "RUNNING",
    "RUN_SECONDS",
    "SLOTS",
    "SUPERVISORS_LOST",
    "TASKS_MISPLACED",
    "TASKS_RUNNING",
    "TASK_CHANGES",
    "TASK_SLOTS",
    "TOKENS",
    "TOOL_CALLS",
    "WORKSPACES_REMOVED",
]

_WAITS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_LONG = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 180, 600, 1800, 3600, 14400)
"""Seconds."""

SLOTS = Gauge("runcast_worker_slots", "Runs that this worker takes at once")
RUNNING = Gauge("runcast_worker_running", "Runs that this worker holds now, their cleanup included")
CLAIMS = Counter("runcast_worker_claims", "Runs claimed", ["runner"])
CLAIMS_REFUSED = Counter("runcast_worker_claims_refused", "Queue entries whose claim was refused")
OUTCOMES = Counter("runcast_worker_outcomes", "Fences written", ["runner", "outcome", "code"])
RUN_SECONDS = Histogram(
    "runcast_worker_run_seconds", "From the claim to the stored fence", ["runner", "outcome"], buckets=_LONG
)
QUEUE_WAIT = Histogram(
    "runcast_worker_queue_wait_seconds",
    "From a run's making to the claim of its first attempt, by the store's clock",
    ["runner"],
    buckets=_WAITS,
)
FIRST_TOKEN = Histogram(
    "runcast_worker_first_token_seconds",
    "From the claim to the first piece of text, reasoning or a tool call",
    ["runner"],
    buckets=_WAITS,
)
ITEMS = Counter("runcast_worker_items", "Items that runs emitted", ["type"])
TOKENS = Counter("runcast_worker_tokens", "Tokens that runs used, as they were told", ["runner", "kind"])
COST = Counter("runcast_worker_cost", "What runs cost, in units of the currency", ["runner", "currency"])
TOOL_CALLS = Counter("runcast_worker_tool_calls", "Tool calls of agents", ["runner", "result"])
NOTICES = Counter("runcast_worker_notices", "Events by which runs tell of trouble", ["name"])
LOST_OUTCOMES = Counter("runcast_worker_outcomes_lost", "Outcomes that could not be stored")
FENCED = Counter("runcast_worker_fenced", "Runs that were taken over while this worker still ran them")
BEATS_FAILED = Counter("runcast_worker_beats_failed", "Beats that the store did not answer")

INPUT_OPEN = Gauge("runcast_worker_input_open", "Approvals and questions that wait for a person now")
INPUT_ASKED = Counter("runcast_worker_input_asked", "Approvals and questions that people were asked", ["kind"])
INPUT_SETTLED = Counter(
    "runcast_worker_input_settled",
    "Of those, how many were answered, expired, or stopped with their run",
    ["kind", "how"],
)

INPUT_WAIT = Histogram(
    "runcast_worker_input_wait_seconds", "From an ask to what settled it", ["kind", "how"], buckets=_WAITS
)

PROCESSES = Gauge("runcast_hermes_processes", "Supervised Hermes calls under way")
KILLED = Counter("runcast_hermes_killed", "Processes that had to be killed after a Hermes call")
SUPERVISORS_LOST = Counter("runcast_hermes_supervisors_lost", "Supervisors that died before their command")

ARTIFACTS_RECEIVED = Counter("runcast_artifacts_received", "Files that runs were given")
ARTIFACTS_REFUSED = Counter("runcast_artifacts_refused", "Runs that ended because of a file they were given", ["code"])
ARTIFACTS_STORED = Counter("runcast_artifacts_stored", "Files that runs left and that were stored")
ARTIFACTS_SKIPPED = Counter("runcast_artifacts_skipped", "New files of workspaces that were not stored", ["reason"])
ARTIFACT_BYTES = Counter("runcast_artifact_bytes", "Bytes of the files of runs, in and out", ["way"])
ARTIFACTS_REMOVED = Counter("runcast_artifacts_removed", "Stored files that were removed after RUNCAST_ARTIFACT_TTL")
WORKSPACES_REMOVED = Counter("runcast_workspaces_removed", "Workspaces that were removed after RUNCAST_WORKSPACE_TTL")

TASK_SLOTS = Gauge("runcast_tasks_slots", "Tasks that this worker takes at once")
TASKS_RUNNING = Gauge("runcast_tasks_running", "Tasks that this worker has now, those that wait for people included")
TASK_CHANGES = Counter("runcast_tasks_changes", "Transitions of tasks", ["what"])
TASKS_MISPLACED = Counter("runcast_tasks_misplaced", "Tasks handed on: their checkpoint is not here, or not writable")
CHECKPOINTS_FAILED = Counter("runcast_tasks_checkpoints_failed", "Writes of a checkpoint that failed")
