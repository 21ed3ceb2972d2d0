"""A URL may name several hosts of one service, as Pulsar's own clients take it: `http://a:8080,b:8080`.

Whoever asks begins with the host that comes first now; one that did not answer comes last from then on.
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
    """Return a URL for each host, in order, without a slash at its end."""
    scheme, sign, rest = url.partition("://")
    hosts, slash, path = rest.partition("/")
    return tuple(f"{scheme}{sign}{host.strip()}{slash}{path}".rstrip("/") for host in hosts.split(",") if host.strip())


def is_tls(url: str) -> bool:
    """True if clients speak TLS to the hosts of this URL."""
    return urlsplit(url).scheme in _TLS


def may_carry_token(url: str) -> bool:
    """True if a token may be sent to this URL of one host: over TLS, or in clear text to this machine itself.

    A name counts by its addresses: `127.evil.example` is not this machine, and a name without addresses is not either.
    """
    return is_tls(url) or _is_this_machine(urlsplit(url).hostname or "")


def _is_this_machine(host: str) -> bool:
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, None)} if host else set()
    except (OSError, UnicodeError):  # UnicodeError: a label that is empty or too long for DNS
        return False
    return bool(addresses) and all(_is_loopback(address) for address in addresses)


def _is_loopback(address: str) -> bool:
    parsed = ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)  # Python 3.11 does not call ::ffff:127.0.0.1 a loopback address
    return (mapped or parsed).is_loopback


class Hosts:
    """The hosts of a URL as URLs. Threads may share it."""

    def __init__(self, url: str) -> None:
        self._urls = each_url(url) or (url,)

    def __len__(self) -> int:
        return len(self._urls)

    @property
    def in_order(self) -> tuple[str, ...]:
        """All of them, that first which is to be asked first."""
        return self._urls

    def first_answer(self, ask: Callable[[str], T]) -> T:
        """Ask one host after the other until one answers. Raises UnavailableError, as the last one did."""
        failure = UnavailableError("no host was asked")
        for url in self.in_order:
            try:
                return ask(url)
            except UnavailableError as error:
                self.failed(url)
                failure = error
        raise failure

    def failed(self, url: str) -> None:
        """One did not answer: ask it last from now on."""
        self._urls = (*(each for each in self._urls if each != url), url)


@cache
def hosts_of(url: str) -> Hosts:
    """Return what this process knows of a URL's hosts."""
    return Hosts(url)
