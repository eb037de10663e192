"""Behaves like ``hermes chat`` as far as the prompt's first word says. Standard library only.

With ``--format=stream-json`` it prints records, with ``-Q`` the answer at the end, else a screen as 0.19.0 draws it.
``FAKE_HERMES_OLDER`` in its environment: its help does not list ``--format``. ``FAKE_HERMES_MODEL`` names its model.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

SESSION = "20300101_120000_abcdef"


class Records:
    """``--format=stream-json``."""

    def begin(self) -> None:
        say(type="system", subtype="init", model=os.environ.get("FAKE_HERMES_MODEL", "fake"), session_id="s1")

    def text(self, text: str) -> None:
        say(type="text", text=text)

    def tool(self, name: str, args: dict[str, object]) -> None:
        say(type="tool_use", name=name, input=args)

    def end(self, text: str) -> int:
        result(text)
        return 0


class Quiet:
    """``-Q``: the session on standard error, notices for a screen ahead of the answer."""

    def begin(self) -> None:
        write("  ⚠ tirith security scanner enabled but not available\r\n")

    def text(self, text: str) -> None:
        pass

    def tool(self, name: str, args: dict[str, object]) -> None:
        pass

    def end(self, text: str) -> int:
        print(f"\nsession_id: {SESSION}", file=sys.stderr, flush=True)
        if text:
            write(text + "\n")
        else:
            write("⚠️ No reply: the model returned empty content after retries.\n")
        return 0


class Screen:
    """Neither: frames, as wide as COLUMNS says, exit code 0 whatever happened."""

    def __init__(self, prompt: str) -> None:
        self.width = int(os.environ.get("COLUMNS", "80"))
        self.prompt = prompt
        self.open = False

    def begin(self) -> None:
        write(f"Query: {self.prompt}\n")
        write("Initializing agent...\r\n" + "─" * 40 + "\r\n\n")

    def text(self, text: str) -> None:
        if not self.open:
            write("\r\n╭─ ⚕ Hermes " + "─" * (self.width - 13) + "╮\r\n")
        self.open = True
        for line in text.split("\n"):
            write(f"    {line}\r\n")

    def tool(self, name: str, args: dict[str, object]) -> None:
        self.close()
        write(f"  ┊ 💻 preparing {name}…\r\n")

    def end(self, text: str) -> int:
        self.close()
        write(f"\nResume this session with:\n  hermes --resume {SESSION}\n\n")
        write(f"Session:        {SESSION}\nDuration:       3s\nMessages:       2 (1 user, 0 tool calls)\n")
        return 0

    def close(self) -> None:
        if self.open:
            write("╰" + "─" * (self.width - 2) + "╯\r\n")
        self.open = False


def write(text: str) -> None:
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def say(**record: object) -> None:
    print(json.dumps({**record, "timestamp": 1}, ensure_ascii=False), flush=True)


def result(text: str, exit_code: int = 0, **more: object) -> None:
    tokens = {"input": 10, "output": 2, "total": 12, "cache_read": 0, "cache_write": 0}
    say(type="result", session_id="s1", exit_code=exit_code, text=text, tokens=tokens, duration_ms=1, **more)


def interrupted(*_: object) -> None:
    if "--format=stream-json" in sys.argv:
        result("", 130, error="Interrupted")
    os._exit(130)


def main(argv: list[str]) -> int:
    if "--version" in argv:
        print("Hermes Agent v0.0.0 (fake)")
        return 0
    if "--help" in argv and not any(a.startswith("--query=") for a in argv):
        older = os.environ.get("FAKE_HERMES_OLDER")
        print("usage: hermes chat [-q QUERY] [-Q]" + ("" if older else " [--format {text,stream-json}]"))
        return 0
    prompt = next(a.removeprefix("--query=") for a in argv if a.startswith("--query="))
    signal.signal(signal.SIGTERM, interrupted)
    return behave(prompt.split(), argv, prompt)


def behave(words: list[str], argv: list[str], prompt: str) -> int:
    word, out = words[0], shown(argv, prompt)
    if word == "UNCONFIGURED":
        print("\nIt looks like Hermes isn't configured yet\n\n  Run:  hermes setup")
        return 1
    out.begin()
    if word == "ECHO":
        echo = json.dumps({"argv": argv, "env": dict(os.environ), "prompt": prompt, "cwd": os.getcwd()})
        out.text(echo)
        return out.end(echo)
    if word == "WRITE":
        with open(words[1], "x") as file:
            file.write(words[1])
        return out.end("written")
    if word == "LINGER":
        out.text("done")
        out.end("done")
        if len(words) > 1:  # until the test makes that file; and another one says that it came so far
            while not os.path.exists(words[1]):
                time.sleep(0.02)
            open(words[1] + ".gone", "x").close()
        else:
            time.sleep(2)
        print("finished", file=sys.stderr)
    elif word == "HANG":
        subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM; while :; do sleep 0.2; done"])
        out.text("partial ")
        out.tool("terminal", {"command": "x"})
        time.sleep(600)
    elif word == "FLOOD":
        for i in range(20_000):
            out.text(f"{i} ".ljust(200, "x"))
        open(words[1], "x").close()
        return out.end("")
    elif word == "NORESULT":
        out.text("partial")
        print("Traceback: boom", file=sys.stderr)
        return int(words[1])
    elif word == "BIG":
        text = "é" * (int(words[1]) if len(words) > 1 else 5 << 19)
        out.text(text)
        return out.end(text)
    elif word == "CRASH":
        out.text("done")
        out.end("done")
        os.kill(os.getpid(), signal.SIGSEGV)
    elif word == "SILENT":
        time.sleep(600)
    else:
        return out.end("")
    return 0


def shown(argv: list[str], prompt: str) -> Records | Quiet | Screen:
    if "--format=stream-json" in argv:
        return Records()
    return Quiet() if "-Q" in argv else Screen(prompt)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
