"""Lets brokers of Pulsar 5.0 delete segments.

1. Only brokers with a session in this ZooKeeper get the request, so no other cluster with the same names can.
2. A broker that does not own the segment redirects to the owner. Each hop is a request of its own, before which the
   caller checks again, and to which the broker has just returned the topic's layout: a broker that hangs could delete
   the segment later, when another topic may have the name.
3. Without `force=true`, a broker refuses while producers or consumers are connected to the segment.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import parse_qs, urlsplit

from streaming.adapters.pulsar.admin_api.segments import layout_in, layout_request, view_of_segment
from streaming.adapters.pulsar.http import Answer, FailedAnswerError, PulsarAdminSettings, PulsarHttp
from streaming.errors import RefusedError, UnavailableError
from udfs.paths import SegmentName, segment_of
from udfs.records import BrokerView, Presence

_HOPS = 3
_SHOWN = 300  # characters of a broker's message
_KIND = "/admin/v2/segments"  # if these requests hang, that is not held against other requests
_ADVICE = (
    "a broker refuses while producers or consumers are connected to the segment, and if the credentials in "
    "[pulsar] are not a superuser's"
)


class BrokerSegmentRemover:
    """SegmentRemover over the admin API.

    Args:
        running: returns the web addresses of all brokers that run now. Raises UnavailableError.
    """

    def __init__(self, settings: PulsarAdminSettings, running: Callable[[], Sequence[str]]) -> None:
        self._settings = settings
        self._http = PulsarHttp(settings)
        self._running = running

    def delete(self, segment: str, may_send: Callable[[], bool]) -> bool:
        """Let the owner delete the segment; False if may_send forbade it. Raises UnavailableError, RefusedError."""
        name = segment_of(segment)
        layout = None if name is None or name.may_be_v1 else layout_request(name.topic)
        if name is None or layout is None:
            raise RefusedError(f"{segment}: no request to a broker can name such a segment")
        path = f"v2/segments/{name.topic}/{segment.rpartition('/')[2]}"
        hosts = self._running()
        if not hosts:
            raise UnavailableError("no broker runs")
        host, query = hosts[0], ""
        for _hop in range(_HOPS):
            deadline = time.monotonic() + self._settings.timeout_seconds
            if not self._is_unnamed(host, layout, name, deadline) or not may_send():
                return False
            answer = self._send(host, f"{path}{query}", deadline)
            if answer.ok:
                return True
            host, query = _next_hop(answer.location, hosts)
        raise UnavailableError(f"brokers redirect the deletion of {segment} to each other")

    def _send(self, host: str, path: str, deadline: float) -> Answer:
        """Send the request once; return a success or a redirect. Raises UnavailableError, RefusedError."""
        try:
            answer = self._http.delete_from(host, path, deadline=deadline, kind=_KIND)
        except FailedAnswerError as error:
            if error.is_busy:
                raise
            raise _refused(host, error.reason) from error
        if not answer.ok and not answer.location:
            raise _refused(host, f"HTTP {answer.status}: {answer.reason}")
        return answer

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _is_unnamed(self, host: str, layout: str, name: SegmentName, deadline: float) -> bool:
        """Whether the layout that this broker reads now does not name the segment. Raises UnavailableError."""
        read = partial(layout_in, name.topic)
        found = read(host, self._http.get_from(host, layout, deadline=deadline, kind=_KIND))
        view = found if isinstance(found, BrokerView) else view_of_segment(name, found)
        if view.presence is Presence.UNREADABLE:
            raise UnavailableError(f"{host}: {view.detail}")
        return view.presence is Presence.GONE


def _refused(host: str, reason: str) -> RefusedError:
    shown = " ".join(reason.partition("Stacktrace:")[0].split())[:_SHOWN]
    return RefusedError(f"{host}: {shown}; {_ADVICE}")


def _next_hop(location: str, hosts: Sequence[str]) -> tuple[str, str]:
    """Return the host and the query of a redirect. Raises UnavailableError unless it leads to a running broker."""
    parts = urlsplit(location)
    host = f"{parts.scheme}://{parts.netloc}"
    if host not in hosts:
        raise UnavailableError(f"a broker redirects the deletion to {location!r}, where no broker runs")
    # the leader has assigned the owner; nothing else of the redirect is passed on, such as another path
    return host, "?authoritative=true" if parse_qs(parts.query).get("authoritative") == ["true"] else ""
