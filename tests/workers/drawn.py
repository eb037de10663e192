"""Screens as ``hermes chat`` draws them, for the tests of its readers."""

from __future__ import annotations

from broker.items import Event, Item, MessageDelta, ReasoningDelta

__all__ = ["SESSION", "Drawn", "events", "reasoning", "split_everywhere", "text"]

SESSION = "20300102_030405_abc123"


class Drawn:
    """``indent`` four spaces: as 0.19.0, which marks its answers ⚕; none: as 0.22.2, with ☤."""

    def __init__(self, *, prompt: str = "hello", width: int = 100, indent: str = "    ") -> None:
        self.width, self.indent = width, indent
        self.label = " ⚕ Hermes " if indent else " ☤ Hermes "
        self.out = f"Query: {prompt}\nInitializing agent...\r\n{'─' * 40}\r\n\n"

    def add(self, *lines: str) -> Drawn:
        self.out += "".join(f"{line}\r\n" for line in lines)
        return self

    def head(self) -> Drawn:
        return self.add("", f"╭─{self.label}{'─' * (self.width - 3 - len(self.label))}╮")

    def foot(self) -> Drawn:
        return self.add("╰" + "─" * (self.width - 2) + "╯")

    def answer(self, *lines: str) -> Drawn:
        return self.head().add(*(self.indent + line for line in lines)).foot()

    def thought(self, *lines: str) -> Drawn:
        self.add("", "┌─ Reasoning " + "─" * (self.width - 14) + "┐")
        return self.add(*lines, "└" + "─" * (self.width - 2) + "┘")

    def panel(self, *lines: str) -> Drawn:
        margin = " " * 5 if self.indent else " "
        filled = [line.ljust(self.width) for line in ("", *(margin + line for line in lines), "")]
        self.add(f" ─ {self.label} ".ljust(self.width - 1, "─") + " ", *filled, " " + "─" * (self.width - 2) + " ")
        return self

    def begins(self, *names: str) -> Drawn:
        return self.add(*(f"  ┊ 💻 preparing {name}…" for name in names))

    def ends(self, verb: str, about: str, seconds: str = "0.4", error: str = "") -> Drawn:
        return self.add(f"  ┊ 💻 {verb:9} {about}  {seconds}s{f' [{error}]' if error else ''}")

    def bytes(self, *, closed: bool = True, session: str = SESSION) -> bytes:
        if not closed:
            return self.out.encode()
        summary = f"Session:        {session}\nDuration:       1m 5s\nMessages:       2 (1 user, 0 tool calls)\n"
        return f"{self.out}\nResume this session with:\n  hermes --resume {session}\n\n{summary}".encode()


def text(items: list[Item]) -> str:
    return "".join(item.text for item in items if isinstance(item, MessageDelta))


def reasoning(items: list[Item]) -> str:
    return "".join(item.text for item in items if isinstance(item, ReasoningDelta))


def events(items: list[Item], name: str) -> list[dict[str, object]]:
    return [item.payload for item in items if isinstance(item, Event) and item.name == name]


def split_everywhere(raw: bytes) -> list[tuple[bytes, bytes]]:
    return [(raw[:place], raw[place:]) for place in range(len(raw) + 1)]
