"""Store URLs: one string → what to connect to. Passwords never appear in messages or reprs.

| URL | what it is |
|---|---|
| ``redis://[user:password@]host[:port][/db]`` | one server |
| ``rediss://…?ssl_ca_certs=FILE`` | the same with TLS |
| ``unix:///path/to.sock[?db=0]`` | its Unix socket |
| ``embedded:``, ``embedded:/some/dir`` | the Valkey server of the wheel, in the data directory or in another |
| ``memory:``, ``memory:name`` | fakeredis, one per name and process |
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from broker.errors import InvalidRequest

__all__ = ["Target", "parse"]

_ALLOWED = (
    "redis://host:port/db, rediss://host:port/db (TLS), unix:///path/to.sock, embedded: (or embedded:/dir), "
    "memory: (or memory:name)"
)
_PLAIN = frozenset({"db"})
_TLS = frozenset(
    {
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_ca_data",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_password",
        "ssl_cert_reqs",
        "ssl_check_hostname",
    }
)
_CERT_REQS = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}
_FALSE = frozenset({"0", "f", "false", "n", "no"})


@dataclass(frozen=True)
class Target:
    """Where a store is. ``shown`` names it in messages, without secrets."""

    kind: Literal["tcp", "unix", "embedded", "memory"]
    shown: str
    host: str = "localhost"
    port: int = 6379
    path: str = ""
    """The Unix socket, the data directory of ``embedded:``, or the name of ``memory:``."""
    db: int = 0
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)


def parse(url: str, data_dir: Path) -> Target:
    """``InvalidRequest`` (field ``redis_url``) for what is no store URL. TLS files are read here."""
    scheme, colon, rest = url.strip().partition(":")
    match scheme.lower() if colon else "":
        case "memory":
            name = rest.removeprefix("//")
            return Target(kind="memory", shown=f"memory:{name}", path=name)
        case "embedded":
            return _embedded(rest, data_dir)
        case "redis" | "rediss" | "unix" as known:
            return _server(known, url.strip())
        case _:
            # Neither the URL nor its scheme is quoted: a mistyped one may hold a password anywhere.
            raise _refused("its scheme is not known")


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"the store URL cannot be used: {why}. Allowed: {_ALLOWED}", field="redis_url")


def _embedded(rest: str, data_dir: Path) -> Target:
    given = rest.removeprefix("//")
    try:
        directory = (Path(given) if given else data_dir).expanduser().absolute()
    except RuntimeError as error:
        raise _refused(f"the data directory: {error}") from None
    return Target(kind="embedded", shown=f"embedded:{directory}", path=str(directory))


def _server(scheme: str, url: str) -> Target:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _refused("its host or port is malformed (0 to 65535)") from None
    options = _options(scheme, parts)
    username, password = unquote(parts.username or ""), unquote(parts.password or "")
    if scheme == "unix":
        path = unquote(parts.path)
        if not path or parts.hostname:
            raise _refused("a unix URL names an absolute path and no host")
        db = _database(options.get("db", "0"))
        return Target("unix", f"unix://{path}", path=path, db=db, username=username, password=password)
    host, port = parts.hostname or "localhost", port or 6379
    db = _database(options.get("db") or unquote(parts.path).strip("/") or "0")
    shown = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/{db}"
    tls = _context(options) if scheme == "rediss" else None
    return Target("tcp", shown, host, port, db=db, username=username, password=password, tls=tls)


def _options(scheme: str, parts: SplitResult) -> dict[str, str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    allowed = _PLAIN | _TLS if scheme == "rediss" else _PLAIN
    if unknown := options.keys() - allowed:
        raise _refused(f"options {sorted(unknown)} are not known for {scheme}: {sorted(allowed)} are")
    return options


def _database(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise _refused("the database is a number")
    return int(text)


def _context(options: dict[str, str]) -> ssl.SSLContext:
    reqs = options.get("ssl_cert_reqs", "required")
    if reqs not in _CERT_REQS:
        raise _refused(f"ssl_cert_reqs is one of {sorted(_CERT_REQS)}")
    context = ssl.create_default_context()
    check = options.get("ssl_check_hostname", "true").lower() not in _FALSE
    context.check_hostname = check and reqs != "none"
    context.verify_mode = _CERT_REQS[reqs]
    try:
        _load(context, options)
    except (OSError, ValueError) as error:
        # ssl.SSLError is an OSError; its text holds no secret.
        raise _refused(f"a TLS file or option is unusable ({error})") from None
    return context


def _load(context: ssl.SSLContext, options: dict[str, str]) -> None:
    trusted = [options.get(name) or None for name in ("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data")]
    if any(trusted):
        context.load_verify_locations(*trusted)
    if certificate := options.get("ssl_certfile"):
        context.load_cert_chain(certificate, options.get("ssl_keyfile") or None, options.get("ssl_password") or None)
