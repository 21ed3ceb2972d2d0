"""A URL may name several hosts of one service, as Pulsar's own clients take it: `http://a:8080,b:8080`.

Whoever asks begins with the host that comes first now; one that did not answer comes last from then on.
"""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from streaming.errors import UnavailableError

T = TypeVar("T")


def each_url(url: str) -> tuple[str, ...]:
    """Return a URL for each host, in order, without a slash at its end."""
    scheme, sign, rest = url.partition("://")
    hosts, slash, path = rest.partition("/")
    return tuple(f"{scheme}{sign}{host.strip()}{slash}{path}".rstrip("/") for host in hosts.split(",") if host.strip())


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
