"""Behaves like ``hermes chat … --format=stream-json`` as far as the prompt's first word says. Standard library only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time


def say(**record: object) -> None:
    print(json.dumps({**record, "timestamp": 1}, ensure_ascii=False), flush=True)


def result(text: str, exit_code: int = 0, **more: object) -> None:
    tokens = {"input": 10, "output": 2, "total": 12, "cache_read": 0, "cache_write": 0}
    say(type="result", session_id="s1", exit_code=exit_code, text=text, tokens=tokens, duration_ms=1, **more)


def interrupted(*_: object) -> None:
    result("", 130, error="Interrupted")
    os._exit(130)


def main(argv: list[str]) -> int:
    prompt = next(a.removeprefix("--query=") for a in argv if a.startswith("--query="))
    word = prompt.split()[0]
    signal.signal(signal.SIGTERM, interrupted)
    if word == "UNCONFIGURED":
        print("\nIt looks like Hermes isn't configured yet\n\n  Run:  hermes setup")
        return 1
    say(type="system", subtype="init", model="fake", session_id="s1")
    if word == "ECHO":
        echo = json.dumps({"argv": argv, "env": dict(os.environ), "prompt": prompt})
        say(type="text", text=echo)
        result(echo)
    elif word == "LINGER":
        say(type="text", text="done")
        result("done")
        time.sleep(2)
        print("finished", file=sys.stderr)
    elif word == "HANG":
        subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM; while :; do sleep 0.2; done"])
        say(type="text", text="partial ")
        say(type="tool_use", name="terminal", input={"command": "x"})
        time.sleep(600)
    elif word == "FLOOD":
        for i in range(20_000):
            say(type="text", text=f"{i} ".ljust(200, "x"))
        open(prompt.split()[1], "x").close()
        result("")
    elif word == "NORESULT":
        say(type="text", text="partial")
        print("Traceback: boom", file=sys.stderr)
        return int(prompt.split()[1])
    elif word == "BIG":
        text = "é" * (5 << 19)
        say(type="text", text=text)
        result(text)
    elif word == "SILENT":
        time.sleep(600)
    else:
        result("")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
