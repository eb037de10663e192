"""In Hermes' place: ``PLAY FILE`` writes the pieces that the file lists, each in a write of its own, after its pause;
any other prompt is answered with the arguments that came, to the byte. Standard library only."""

from __future__ import annotations

import json
import os
import sys
import time


def main(argv: list[str]) -> int:
    prompt = next(a.removeprefix("--query=") for a in argv if a.startswith("--query="))
    if prompt.startswith("PLAY "):
        with open(prompt.removeprefix("PLAY "), encoding="latin-1") as script:
            for pause, piece in json.load(script):
                time.sleep(pause)
                view = piece.encode("latin-1")
                while view:
                    view = view[os.write(1, view) :]
        return 0
    heard = json.dumps([os.fsencode(argument).hex() for argument in argv])
    for record in (
        {"type": "system", "subtype": "init", "model": "stub", "session_id": "s1"},
        {"type": "text", "text": heard},
        {"type": "result", "session_id": "s1", "exit_code": 0, "text": heard},
    ):
        print(json.dumps(record), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
