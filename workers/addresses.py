"""Which addresses a worker may be sent to by somebody else's URL. Pure.

Public ones, and those of networks that the operator named. An IPv6 address that carries an IPv4 one counts as both.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

__all__ = ["Network", "is_allowed", "networks"]

Network: TypeAlias = IPv4Network | IPv6Network

_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
"""RFC 6052, RFC 8215: a translator in the network leads from there to the IPv4 address in the last four bytes."""
_IPV4_COMPATIBLE = IPv6Network("::/96")
_NOT_PUBLIC: tuple[Network, ...] = (
    IPv4Network("192.0.0.0/24"),  # of protocols; Python takes some of it for global
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv6Network("2001::/23"),
    IPv6Network("fec0::/10"),  # what was site-local
)


def networks(listed: str) -> tuple[Network, ...]:
    """``10.0.0.0/8, fd00::/8`` → networks. Raises ``ValueError``; the settings have checked it."""
    return tuple(ip_network(part.strip()) for part in listed.split(",") if part.strip())


def is_allowed(address: str, named: Sequence[Network] = ()) -> bool:
    """Whether a worker may connect to ``address``, as a resolver gave it. False for what is no address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if any(parsed in network for network in named):
        return True
    return all(_is_public(each) for each in (parsed, *_carried(parsed)))


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback
    if isinstance(address, IPv6Address) and address in _NAT64[0]:
        return True  # what it carries decides
    return address.is_global and not special and not any(address in network for network in _NOT_PUBLIC)


def _carried(address: IPv4Address | IPv6Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses in an IPv6 one that something on the way may go to."""
    if isinstance(address, IPv4Address):
        return ()
    last = IPv4Address(int(address) & 0xFFFFFFFF)
    carried = [last] if any(address in network for network in (*_NAT64, _IPV4_COMPATIBLE)) else []
    if address.sixtofour is not None:
        carried.append(address.sixtofour)
    carried += address.teredo or ()
    return tuple(carried)
