"""Counters and gauges of the broker, in the process's default Prometheus registry.

Every bound has one: where something waits, is cut, is sent again or is given up, a number here moves.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge

__all__ = [
    "APPENDED",
    "APPEND_CALLS",
    "BACK_PRESSURE",
    "CONTROL_FRAMES",
    "CUT",
    "DEMOTED",
    "EPOCHS",
    "FEEDS",
    "FOLLOWED",
    "LANE_BROKEN",
    "LANE_READS",
    "OUTAGES",
    "RANGE_READS",
    "RENDERS",
    "RESENT",
    "RETRIES",
    "SPLIT",
    "TRUNCATED_BYTES",
    "VIEWERS",
]

APPENDED = Counter("runcast_items_appended", "Items that this process appended to logs")
APPEND_CALLS = Counter("runcast_append_calls", "Append scripts that this process called, retries included")
RETRIES = Counter("runcast_append_retries", "Append calls that were repeated because the store did not answer")
RESENT = Counter("runcast_items_resent", "Items sent again because the store had lost them")
EPOCHS = Counter("runcast_epochs", "Logs whose lost end could not be sent again, so that their epoch changed")
OUTAGES = Counter("runcast_outages_given_up", "Publishers that gave up because the store stayed away too long")
BACK_PRESSURE = Counter("runcast_publisher_waits", "Times that a runner had to wait for a full publisher")
SPLIT = Counter("runcast_items_split", "Extra items made from texts longer than one item may be")
TRUNCATED_BYTES = Counter("runcast_truncated_bytes", "Bytes cut from fields longer than one item may be")

FOLLOWED = Gauge("runcast_followed_keys", "Streams that the lanes of this process follow")
LANE_READS = Counter("runcast_lane_reads", "Blocking reads that returned, of all lanes")
LANE_BROKEN = Counter("runcast_lane_interruptions", "Times that a lane lost its connection")
FEEDS = Gauge("runcast_feeds", "Runs with at least one viewer in this process")
VIEWERS = Gauge("runcast_viewers", "Viewers attached to this process")
RANGE_READS = Counter("runcast_range_reads", "Range reads for viewers that catch up")
RENDERS = Counter("runcast_renders", "Renderings of a batch for one group of viewers")
DEMOTED = Counter("runcast_viewers_demoted", "Viewers that left the live group because their socket was full")
CUT = Counter("runcast_viewers_cut", "Viewers cut off", ["reason"])
CONTROL_FRAMES = Counter("runcast_control_frames", "Control frames sent to viewers", ["name"])
