"""Which addresses a worker may be sent to."""

from __future__ import annotations

import pytest

from workers.addresses import is_allowed, networks


@pytest.mark.parametrize("address", ["93.184.215.14", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001:80b::200e"])
def test_public_ones(address: str) -> None:
    assert is_allowed(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",  # metadata of a cloud's machine
        "100.64.0.1",  # carrier-grade NAT
        "100.100.100.200",
        "192.0.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "2001::1",
        "::ffff:127.0.0.1",  # IPv4-mapped
        "::ffff:10.0.0.1",
        "::127.0.0.1",  # IPv4-compatible
        "64:ff9b::7f00:1",  # NAT64 of 127.0.0.1
        "64:ff9b::a9fe:a9fe",  # and of 169.254.169.254
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",  # 6to4 of 127.0.0.1
        "2002:a9fe:a9fe::1",
        "localhost",
        "",
        "0x7f.1",
        "2130706433",
    ],
)
def test_all_others(address: str) -> None:
    assert not is_allowed(address)


def test_what_carries_a_public_address_is_public() -> None:
    assert is_allowed("::ffff:1.1.1.1")
    assert is_allowed("64:ff9b::101:101")


def test_networks_that_the_operator_names() -> None:
    named = networks(" 10.0.0.0/8, fd00::/8,127.0.0.1 ")
    assert is_allowed("10.1.2.3", named)
    assert is_allowed("::ffff:10.1.2.3", named)
    assert is_allowed("fd00::5", named)
    assert is_allowed("127.0.0.1", named)
    assert not is_allowed("127.0.0.2", named)
    assert not is_allowed("192.168.0.1", named)
    assert networks("") == ()
