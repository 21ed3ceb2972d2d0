"""URLs with several hosts of the same service, in the form of Pulsar's clients: `http://a:8080,b:8080`.

Requests go to the first host of the current order; a host that did not answer moves to the end.
"""

import socket
from collections.abc import Callable
from functools import cache
from ipaddress import ip_address
from typing import TypeVar
from urllib.parse import urlsplit

from streaming.errors import UnavailableError

T = TypeVar("T")

_TLS = ("https", "pulsar+ssl")


def each_url(url: str) -> tuple[str, ...]:
    """Return a URL for each host, in order, without a slash at the end."""
    scheme, sign, rest = url.partition("://")
    hosts, slash, path = rest.partition("/")
    return tuple(f"{scheme}{sign}{host.strip()}{slash}{path}".rstrip("/") for host in hosts.split(",") if host.strip())


def is_tls(url: str) -> bool:
    """True if clients speak TLS to the hosts of this URL."""
    return urlsplit(url).scheme in _TLS


def may_carry_secret(url: str) -> bool:
    """True if a secret may be sent to this URL of a single host: over TLS, or unencrypted to this machine itself."""
    return is_tls(url) or _is_this_machine(urlsplit(url).hostname or "")


def _is_this_machine(host: str) -> bool:
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None)} if host else set()
    except (OSError, UnicodeError):  # UnicodeError: a label that is empty or too long for DNS
        return False
    # the addresses of a name decide: neither `127.evil.example` nor a name without addresses is this machine
    return bool(addresses) and all(_is_loopback(address) for address in addresses)


def _is_loopback(address: str) -> bool:
    parsed = ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)  # in Python 3.11 ::ffff:127.0.0.1 is not a loopback address
    return (mapped or parsed).is_loopback


class Hosts:
    """The hosts of a URL as URLs. Threads may share an instance."""

    def __init__(self, url: str) -> None:
        self._urls = each_url(url) or (url,)

    def __len__(self) -> int:
        return len(self._urls)

    @property
    def in_order(self) -> tuple[str, ...]:
        """All hosts; the first is the next to use."""
        return self._urls

    def first_answer(self, ask: Callable[[str], T]) -> T:
        """Call `ask` for each host until a host answers. Raises the UnavailableError of the last host."""
        failure = UnavailableError("no host was asked")
        for url in self.in_order:
            try:
                return ask(url)
            except UnavailableError as error:
                self.failed(url)
                failure = error
        raise failure

    def failed(self, url: str) -> None:
        """Move a host that did not answer to the end."""
        self._urls = (*(other for other in self._urls if other != url), url)


@cache
def hosts_of(url: str) -> Hosts:
    """Return the hosts of a URL, shared by this process."""
    return Hosts(url)
