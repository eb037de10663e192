"""Counters and gauges of the worker, in the process's default Prometheus registry."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

__all__ = [
    "BEATS_FAILED",
    "CLAIMS",
    "CLAIMS_REFUSED",
    "FENCED",
    "INPUT_ASKED",
    "INPUT_OPEN",
    "INPUT_SETTLED",
    "KILLED",
    "LOST_OUTCOMES",
    "OUTCOMES",
    "PROCESSES",
    "RUNNING",
    "SLOTS",
    "SUPERVISORS_LOST",
]

SLOTS = Gauge("runcast_worker_slots", "Runs that this worker takes at once")
RUNNING = Gauge("runcast_worker_running", "Runs that this worker holds now, their cleanup included")
CLAIMS = Counter("runcast_worker_claims", "Runs claimed", ["runner"])
CLAIMS_REFUSED = Counter("runcast_worker_claims_refused", "Queue entries whose claim was refused")
OUTCOMES = Counter("runcast_worker_outcomes", "Fences written", ["runner", "outcome", "code"])
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

PROCESSES = Gauge("runcast_hermes_processes", "Supervised Hermes calls under way")
KILLED = Counter("runcast_hermes_killed", "Processes that had to be killed after a Hermes call")
SUPERVISORS_LOST = Counter("runcast_hermes_supervisors_lost", "Supervisors that died before their command")
