"""Store URLs: one string → what to connect to. Passwords never appear in messages or reprs.

| URL | what it is |
|---|---|
| ``redis://[user:password@]host[:port][/db]`` | one server |
| ``rediss://…?ssl_ca_certs=FILE`` | the same with TLS |
| ``unix:///path/to.sock[?db=0]`` | its Unix socket |
| ``redis+cluster://[user:password@]host[:port][,host…]`` | a Redis or Valkey Cluster; some of its nodes suffice |
| ``redis+sentinel://[user:password@]host[:port][,host…]/NAME[/db]`` | the master of that name, as Sentinels know it |
| ``rediss+cluster://…``, ``rediss+sentinel://…`` | the same with TLS (to the Sentinels as well) |
| ``embedded:``, ``embedded:/some/dir`` | the Valkey server of the wheel, in the data directory or in another |
| ``memory:``, ``memory:name`` | fakeredis, one per name and process |
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from broker.errors import InvalidRequest

__all__ = ["Address", "Target", "parse", "show"]

Address: TypeAlias = tuple[str, int]
"""Host and port."""

_ALLOWED = (
    "redis://host:port/db, rediss://host:port/db (TLS), unix:///path/to.sock, redis+cluster://host:port,host:port, "
    "redis+sentinel://host:port,host:port/mastername (both rediss+… with TLS), embedded: (or embedded:/dir), "
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
_SENTINEL = frozenset({"sentinel_username", "sentinel_password"})
_PORTS = {"redis": 6379, "cluster": 6379, "sentinel": 26379}
_CERT_REQS = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}
_FALSE = frozenset({"0", "f", "false", "n", "no"})


@dataclass(frozen=True)
class Target:
    """Where a store is. ``shown`` names it in messages, without secrets."""

    kind: Literal["tcp", "unix", "embedded", "memory", "cluster", "sentinel"]
    shown: str
    host: str = "localhost"
    port: int = 6379
    path: str = ""
    """The Unix socket, the data directory of ``embedded:``, or the name of ``memory:``."""
    db: int = 0
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    seeds: tuple[Address, ...] = ()
    """Of a Cluster or of Sentinels: those that are asked first."""
    master: str = ""
    """The name that Sentinels have for it."""
    sentinel_username: str = field(default="", repr=False)
    sentinel_password: str = field(default="", repr=False)

    def at(self, address: Address) -> Target:
        """The server at one address of a Cluster, or the one that a Sentinel named."""
        return replace(self, kind="tcp", shown=f"{self.shown} at {show(address)}", host=address[0], port=address[1])

    def sentinel_at(self, address: Address) -> Target:
        """A Sentinel itself, which has accounts of its own and no databases."""
        at = replace(self.at(address), shown=f"Sentinel {show(address)}", master="", db=0)
        return replace(at, username=self.sentinel_username, password=self.sentinel_password)


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
        case "redis+cluster" | "rediss+cluster" | "redis+sentinel" | "rediss+sentinel" as known:
            return _several(known, url.strip())
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
    host, port = parts.hostname or "localhost", port or _PORTS["redis"]
    db = _database(options.get("db") or unquote(parts.path).strip("/") or "0")
    shown = f"{scheme}://{show((host, port))}/{db}"
    tls = _context(options) if scheme == "rediss" else None
    return Target("tcp", shown, host, port, db=db, username=username, password=password, tls=tls)


def _several(scheme: str, url: str) -> Target:
    named, _, rest = url.partition("://")
    netloc = re.split("[/?#]", rest, maxsplit=1)[0]
    # Without the hosts: `urlsplit` refuses brackets behind the first one.
    parts = urlsplit(f"{named}://hosts{rest.removeprefix(netloc)}")
    options = _options(scheme, parts)
    kind: Literal["cluster", "sentinel"] = "cluster" if scheme.endswith("cluster") else "sentinel"
    account, _, hosts = netloc.rpartition("@")
    username, _, password = account.partition(":")
    seeds = tuple(_address(host, _PORTS[kind]) for host in hosts.split(","))
    names = [unquote(name) for name in parts.path.split("/") if name]
    master = names.pop(0) if kind == "sentinel" and names else ""
    if kind == "sentinel" and not master:
        raise _refused("a Sentinel URL names the master behind the hosts: /mastername")
    if len(names) > 1 or (kind == "cluster" and names not in ([], ["0"])):
        raise _refused("a Cluster has database 0 alone" if kind == "cluster" else "its path is /mastername/db")
    return Target(
        kind,
        f"{scheme}://{','.join(map(show, seeds))}{f'/{master}' if master else ''}",
        db=_database(options.get("db") or (names[0] if names else "0")),
        username=unquote(username),
        password=unquote(password),
        tls=_context(options) if scheme.startswith("rediss") else None,
        seeds=seeds,
        master=master,
        sentinel_username=options.get("sentinel_username", ""),
        sentinel_password=options.get("sentinel_password", ""),
    )


def _address(text: str, default: int) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _refused("one of its hosts or ports is malformed (host:port,host:port, 0 to 65535)") from None
    if not host or parts.path:
        raise _refused("one of its hosts is empty (host:port,host:port)")
    return host, port or default


def show(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _options(scheme: str, parts: SplitResult) -> dict[str, str]:
    # No form, where “+” is a space: percent-encoded, as user and password are.
    pairs = (pair.partition("=") for pair in parts.query.split("&") if pair)
    options = {unquote(name): unquote(value) for name, _, value in pairs}
    allowed = frozenset() if scheme.endswith("cluster") else _PLAIN
    allowed |= _TLS if scheme.startswith("rediss") else frozenset()
    allowed |= _SENTINEL if scheme.endswith("sentinel") else frozenset()
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
