"""Parsing and formatting of addresses."""

import pytest

from svc_kit.network import Address, parse_address, parse_addresses


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:50051", "127.0.0.1", 50051),
        ("localhost:0", "localhost", 0),
        ("[::1]:65535", "::1", 65535),
        ("0.0.0.0:80", "0.0.0.0", 80),
    ],
)
def test_a_parsed_address_is_formatted_identically(text: str, host: str, port: int) -> None:
    """Including IPv6."""
    address = parse_address(text)

    assert address == Address(host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "50051", ":50051", "host:", "host:x", "host:65536", "host:-1", "host:²", "[]:1"]
)
def test_an_invalid_address_is_refused_with_the_format(text: str) -> None:
    """The message has an example."""
    with pytest.raises(ValueError, match="write host:port"):
        parse_address(text)


def test_ipv6_without_brackets_is_refused_with_the_remedy() -> None:
    """The port is ambiguous."""
    with pytest.raises(ValueError, match=r"\[::1\]:50051"):
        parse_address("::1:50051")


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_only_loopback_addresses_are_loopback(host: str, is_loopback: bool) -> None:
    """Other host names may resolve to other addresses."""
    assert Address(host, 1).is_loopback is is_loopback


def test_a_list_of_replicas_has_addresses() -> None:
    assert parse_addresses("10.0.0.1:1, localhost:2") == (
        Address("10.0.0.1", 1),
        Address("127.0.0.1", 2),
    )
    assert parse_addresses("[::1]:1,[::2]:1") == (Address("::1", 1), Address("::2", 1))


@pytest.mark.parametrize(
    ("text", "problem"),
    {
        "a:1,10.0.0.1:1": "a:1: a list has IP addresses only;.* write dns:///a:1",
        "10.0.0.1:1,[::1]:1": "IPv4 and IPv6",
        "10.0.0.1:1,10.0.0.1:1": "names an address twice",
        "10.0.0.1:1,": "'' is not an address",
    }.items(),
)
def test_what_is_wrong_with_a_list_is_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_addresses(text)
