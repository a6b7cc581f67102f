"""Which addresses a backend may have."""

from __future__ import annotations

import pytest

from backends.addresses import Address, AddressFault, address, base_url, unsafe


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "[fe80::1]",
        "::ffff:169.254.169.254",
        "64:ff9b::169.254.169.254",
        "2002:a9fe:a9fe::",
        "fd00:ec2::254",
        "100.100.100.200",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "0.0.0.0",
        "::",
        "::ffff:0.0.0.0",
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "0",
    ],
)
def test_o74_refused(host: str) -> None:
    assert unsafe(host)
    shown = f"[{host}]" if ":" in host and "[" not in host else host
    with pytest.raises(AddressFault) as caught:
        base_url(f"http://{shown}:8000")
    assert host not in str(caught.value)


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "127.0.0.1", "::1", "fd00::1", "8.8.8.8", "vllm.internal", "localhost", "a"]
)
def test_taken(host: str) -> None:
    assert unsafe(host) is None


@pytest.mark.parametrize(
    ("url", "base", "parts"),
    [
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000", Address("http", "10.0.0.1", 8000)),
        ("HTTP://Gpu-1.Test/", "http://gpu-1.test", Address("http", "gpu-1.test", 80)),
        ("https://[FD00::1]", "https://[fd00::1]", Address("https", "fd00::1", 443)),
    ],
)
def test_base_url(url: str, base: str, parts: Address) -> None:
    assert base_url(url) == base
    assert address(base) == parts


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gpu-1:8000",
        "file:///etc/passwd",
        "gopher://h",
        "http://",
        "http://h:0",
        "http://h:99999",
        "http://h:x",
        "http://user:secret@h",
        "http://h/v1",
        "http://h?x=1",
        "http://h#x",
        "http://h?",
        "http://h\\@evil",
        "http://h\n.evil",
        "http://h evil",
        "http://[::1",
        "http://h$(x)",
    ],
)
def test_what_is_no_base_url(url: str) -> None:
    with pytest.raises(AddressFault) as caught:
        base_url(url)
    assert "secret" not in str(caught.value) + caught.value.hint


def test_addresses_as_text() -> None:
    assert str(Address("https", "fd00::1", 8443)) == "https://[fd00::1]:8443"
