"""What a file of a run may be called, and what type it has. Pure.

Names come from callers and from agents, and end up in file systems, headers and on screens. A name that somebody gives
is one path component that every file system takes and that looks like what it is; a name that an agent made is only
asked to be text that can be shown.
"""

from __future__ import annotations

import mimetypes
import unicodedata
from functools import lru_cache

__all__ = ["NAME_MAX", "PATH_MAX", "fault_of", "is_showable", "media_type", "shown"]

NAME_MAX = 200
"""Bytes of a name that somebody gives: file systems take 255, and some need room for a suffix of their own."""
PATH_MAX = 1_024
"""Bytes of a name, directories included, under which a file that a run made is kept."""
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories: control, format (bidirectional overrides, zero width), surrogates, line and paragraph ends."""
_SEPARATORS = "/\\"
_SPECIAL = '<>:"|?*'
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$"}
    | {f"{name}{n}" for name in ("com", "lpt") for n in "0123456789¹²³"}
)
_INSTRUCTIONS = frozenset({"agents.md", "agent.md", "claude.md", "gemini.md", "hermes.md", "soul.md"})
"""What agents read as instructions where it lies in their directory (Hermes: agent/prompt_builder.py)."""


def fault_of(name: str) -> str:
    """Why a file that somebody gives may not have that name, to follow “the name”; empty where it may."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is no valid Unicode"
    if not name:
        return "is empty"
    if size > NAME_MAX:
        return f"has {size} bytes, {NAME_MAX} are allowed"
    if unicodedata.normalize("NFC", name) != name:
        return "is not in Unicode's form NFC"
    # Under NFKC a character that only looks like a slash or a dot becomes one.
    return _fault_of_form(name) or _fault_of_form(unicodedata.normalize("NFKC", name))


def _fault_of_form(name: str) -> str:
    if any(c in _SEPARATORS for c in name):
        return "has a path separator: a plain file name is allowed, without directories"
    if any(unicodedata.category(c) in _UNSEEN for c in name):
        return "has a control character or one that cannot be seen"
    if found := next((c for c in name if c in _SPECIAL), ""):
        return f"has {found!r}, which not every file system takes"
    if name[0] in ".-":
        return f"begins with {name[0]!r}"
    if name[0].isspace() or name[-1].isspace() or name[-1] == ".":
        return "begins or ends with a blank, or ends with a dot"
    if name.partition(".")[0].rstrip().casefold() in _DEVICES:
        return "is reserved: it names a device on some systems"
    if name.casefold() in _INSTRUCTIONS:
        return "is reserved: agents take what a file of that name says for instructions"
    return ""


def is_showable(path: str) -> bool:
    """Whether a file that a run made can be listed under its name: text, without what cannot be seen, not too long."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:  # bytes that are no UTF-8 come as surrogates
        return False
    return size <= PATH_MAX and "\\" not in path and not any(unicodedata.category(c) in _UNSEEN for c in path)


def shown(name: str) -> str:
    """Any name as text that can be printed: what cannot is escaped, and it is cut after 200 characters."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    text = "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in _UNSEEN else c for c in text)
    return text if len(text) <= 200 else text[:199] + "…"


@lru_cache(maxsize=1)
def _types() -> mimetypes.MimeTypes:
    # Python's own table: the machine's would make the same file another type elsewhere.
    return mimetypes.MimeTypes()


def media_type(name: str) -> str:
    """The media type that a name's ending says; ``application/octet-stream`` where it says none."""
    kind, encoding = _types().guess_type(name.rpartition("/")[2], strict=False)
    if encoding is not None:
        return {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}.get(
            encoding, "application/octet-stream"
        )
    return kind or "application/octet-stream"
