"""URLs with several hosts, and whether a secret may be sent to a URL."""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit


def each_url(url: str) -> tuple[str, ...]:
    """Return a URL for each host of `http://a:8080,b:8080`."""
    scheme, sign, rest = url.partition("://")
    return tuple(f"{scheme}{sign}{host.strip().rstrip('/')}" for host in rest.split(",") if host.strip())


def may_carry_secret(url: str) -> bool:
    """Whether a secret may be sent to this URL: over TLS, or to this machine itself."""
    parts = urlsplit(url)
    if parts.scheme in ("https", "pulsar+ssl"):
        return True
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(parts.hostname, None)} if parts.hostname else set()
    except (OSError, UnicodeError):
        return False
    return bool(addresses) and all(_is_loopback(address) for address in addresses)


def _is_loopback(address: str) -> bool:
    parsed = ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return (mapped or parsed).is_loopback
