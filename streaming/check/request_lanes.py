"""The question about lanes: how many exist, and which of them lose requests.

It reads three znodes for each tenant (or namespace) in bulk, asks no broker, and so loads and creates nothing.
"""

from collections.abc import Iterator

from streaming.check.questions import Notice
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.ports import SweepStore, Unreadable
from streaming.terminal import count_of, some_of
from udfs.paths import MANAGED_LEDGERS_ROOT, cursor_path, encode_name, managed_ledger_path
from udfs.requests.lanes import Lanes

_SHOWN = 5
_READ = 3_000  # znodes at once


def request_lanes(store: SweepStore, settings: Settings) -> str:
    """Count the lanes. Raises Notice about lanes whose requests are not read, and UnavailableError."""
    routes = (settings.topics.route(f"{namespace}/any") for namespace in _namespaces(store, settings))
    lanes = [topic for topic in routes if settings.topics.is_lane(topic)]
    cursor = encode_name(settings.topics.subscription)
    count, unpartitioned, unsubscribed = 0, [], []
    for first in range(0, len(lanes), _READ // 3):
        some = lanes[first : first + _READ // 3]
        paths = [
            path
            for lane in some
            for path in (
                managed_ledger_path(lane),
                managed_ledger_path(f"{lane}-partition-0"),
                cursor_path(f"{lane}-partition-0", cursor),
            )
        ]
        nodes = store.read_many(paths)
        for lane, topic, partition, subscription in zip(some, nodes[::3], nodes[1::3], nodes[2::3], strict=True):
            count += partition is not None
            if topic is not None:
                unpartitioned.append(lane)
            if partition is not None and subscription is None:
                unsubscribed.append(lane)
    faults = []
    if unpartitioned:
        faults.append(f"not partitioned, so nothing reads their requests: {some_of(unpartitioned, _SHOWN)}")
    if unsubscribed:
        faults.append(f"without the service's subscription: {some_of(unsubscribed, _SHOWN)}")
    text = f"topics.lanes = {settings.topics.lanes.value}: {count_of(count, 'lane exists', 'lanes exist')}"
    if faults:
        raise Notice(f"{text}; {'; '.join(faults)}")
    return text


def _namespaces(store: SweepStore, settings: Settings) -> Iterator[str]:
    """Yield a topic name's start, `persistent://tenant/ns`, for each namespace that may have a lane."""
    tenants = _children(store, [MANAGED_LEDGERS_ROOT])[0]
    if settings.topics.lanes is Lanes.TENANT:
        yield from (f"persistent://{tenant}/any" for tenant in tenants)
        return
    for tenant, names in zip(
        tenants, _children(store, [f"{MANAGED_LEDGERS_ROOT}/{tenant}" for tenant in tenants]), strict=True
    ):
        yield from (f"persistent://{tenant}/{name}" for name in names)


def _children(store: SweepStore, parents: list[str]) -> list[list[str]]:
    listed = []
    for parent, names in zip(parents, store.children_many(parents), strict=True):
        if isinstance(names, Unreadable):
            raise UnavailableError(f"can't list {parent}: {names.detail}")
        listed.append(names or [])
    return listed
