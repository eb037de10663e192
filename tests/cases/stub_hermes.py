"""In Hermes' place: ``PLAY FILE`` writes the pieces that the file lists, each in a write of its own, after its pause;
any other prompt is answered with the arguments that came, to the byte, as each mode shows an answer. Standard library
only."""

from __future__ import annotations

import json
import os
import sys
import time

SESSION = "20300101_120000_abcdef"


def main(argv: list[str]) -> int:
    prompts = [a.removeprefix("--query=") for a in argv if a.startswith("--query=")]
    if not prompts:
        # Asked by `auto` what it can do.
        print("usage: hermes chat [-q QUERY] [-Q] [--format {text,stream-json}]")
        return 0
    if prompts[0].startswith("PLAY "):
        play(prompts[0].removeprefix("PLAY "))
        return 0
    heard = json.dumps([os.fsencode(argument).hex() for argument in argv])
    if "--format=stream-json" in argv:
        write(b"".join(json.dumps(record).encode() + b"\n" for record in records(heard)))
    elif "-Q" in argv:
        print(f"\nsession_id: {SESSION}", file=sys.stderr, flush=True)
        write(heard.encode() + b"\n")
    else:
        write(screen(prompts[0].encode(errors="surrogateescape"), heard.encode()))
    return 0


def play(path: str) -> None:
    with open(path, encoding="latin-1") as script:
        for pause, piece in json.load(script):
            time.sleep(pause)
            write(piece.encode("latin-1"))


def write(data: bytes) -> None:
    view = data
    while view:
        view = view[os.write(1, view) :]


def records(heard: str) -> list[dict[str, object]]:
    return [
        {"type": "system", "subtype": "init", "model": "stub", "session_id": "s1"},
        {"type": "text", "text": heard},
        {"type": "result", "session_id": "s1", "exit_code": 0, "text": heard},
    ]


def screen(prompt: bytes, heard: bytes) -> bytes:
    """As 0.19.0 draws it; Rich leaves the CR out of the echo."""
    rule = "─" * (int(os.environ["COLUMNS"]) - 2)
    echo = b"Query: " + prompt.replace(b"\r", b"") + b"\nInitializing agent...\r\n"
    frame = f"\r\n╭─ ⚕ Hermes {rule[11:]}╮\r\n    ".encode() + heard + f"\r\n╰{rule}╯\r\n".encode()
    return echo + frame + f"\nResume this session with:\n  hermes --resume {SESSION}\n".encode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
