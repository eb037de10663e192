"""``runcast runs``, ``show`` and ``cancel``."""

from __future__ import annotations

from tests.ops.conftest import RUN, Command


def test_runs_are_listed_newest_first(runcast: Command) -> None:
    for run_id in ("r1", "r2", "r3"):
        runcast.imported(run_id)
    rows = [line.split("\t") for line in runcast("runs").out.splitlines()]
    assert [row[:3] for row in rows] == [[run_id, "completed", "import"] for run_id in ("r3", "r2", "r1")]
    assert [line["run_id"] for line in runcast("runs", "--json", "--limit", "2").lines] == ["r3", "r2"]


def test_runs_are_chosen_by_status_and_session(runcast: Command) -> None:
    runcast.imported("r1")
    assert runcast.piped(RUN, "import", "--run", "r2", "--session", "s").code == 0
    assert runcast.piped("", "import", "--run", "r3").code == 1
    assert [line["run_id"] for line in runcast("runs", "--json", "--status", "failed").lines] == ["r3"]
    assert [line["run_id"] for line in runcast("runs", "--json", "--session", "s").lines] == ["r2"]


def test_no_runs_is_no_output(runcast: Command) -> None:
    result = runcast("runs")
    assert (result.code, result.out) == (0, "")


def test_show_has_the_facts_and_the_answer(runcast: Command) -> None:
    runcast.imported("r1")
    result = runcast("show", "r1")
    assert result.code == 0
    assert "status      completed" in result.out
    assert "usage       10 tokens in, 2 out" in result.out
    assert result.out.endswith("\nHello world\n")


def test_show_as_json_is_what_the_gateway_answers(runcast: Command) -> None:
    runcast.imported("r1")
    shown = runcast("show", "r1", "--json").lines[0]
    assert (shown["run_id"], shown["first_seq"], shown["last_seq"]) == ("r1", 1, 6)
    assert shown["outcome"]["type"] == "final"


def test_show_of_a_failed_run_says_why_and_how_far(runcast: Command) -> None:
    assert runcast.piped('{"type":"message.delta","data":{"text":"half"}}\n', "import", "--run", "r1").code == 1
    out = runcast("show", "r1").out
    assert "no_fence: " in out
    assert out.endswith("\nhalf\n")


def test_cancel(runcast: Command) -> None:
    assert runcast("run", "x", "--runner", "scripted", "--run-id", "r1", "--detach").code == 0
    cancelled = {"run_id": "r1", "status": "cancelled", "cancel_requested": True}
    assert runcast("cancel", "r1", "--json").lines == [cancelled]
    assert runcast("cancel", "r1").code == 0, "repeating it is harmless"
    runcast.imported("r2")
    assert runcast("cancel", "r2").code == 6
    assert runcast("cancel", "nope").code == 3
