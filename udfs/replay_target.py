"""Which request topic a dead letter may be published to again, or why it stays.

A request has the rights of the topic that it comes to, and whoever can write to the dead-letter topic can write any
letter with any properties. So:
1. Only our own receipts prove which request topic a letter came from. It goes back there.
2. Where no receipt does, a person names the topic.
3. It never gets more rights than it had: not those of a topic of another tenant, nor of a trusted tenant's, unless it
   came from one. Here a letter's own words count as well, since they can only take rights away.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from udfs.paths import tenant_of

UNPROVEN = "no receipt of this service shows which request topic they came from; if you know it, name it with --to"
AMBIGUOUS = "receipts name several request topics that they came from"
MORE_RIGHTS = "they came from a topic whose tenant may ask for less than --to's tenant"
REFUSED = "they were refused as OTHER_TENANT, and requests of --to's tenant may name any tenant"


@dataclass(frozen=True, slots=True)
class Stays:
    """The letter stays where it is. why: in words, without anything that the letter says."""

    why: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a letter came from. proven: the request topics that our receipts of this very request name.

    said: what its own properties say (REAL_TOPIC), "" for nothing. is_other_tenants: whether they say OTHER_TENANT.
    """

    proven: Collection[str]
    said: str = ""
    is_other_tenants: bool = False


def replay_target(
    origin: Origin,
    to: str,
    trusted_tenants: Collection[str],
    *,
    is_request_topic: Callable[[str], bool],
    is_there: Callable[[str], bool],
) -> str | Stays:
    """Return the topic, or why the letter stays. to: the topic that a person named, "" for none.

    is_request_topic: whether a topic is one of ours to read. is_there: whether it exists and is partitioned.
    """
    if len(set(origin.proven)) > 1:
        return Stays(AMBIGUOUS)
    proven = next(iter(origin.proven), "")
    target = to or proven
    if not target:
        return Stays(UNPROVEN)
    if to and (why := _more_rights(origin, proven, to, trusted_tenants)):
        return Stays(why)
    if not is_request_topic(target):
        return Stays(f"they came from {target}, which is no request topic of this service any more")
    return target if is_there(target) else Stays(f"there is no partitioned topic {target} any more")


def _more_rights(origin: Origin, proven: str, to: str, trusted_tenants: Collection[str]) -> str:
    """Why `to` would give a letter rights that it did not have; "" where it would not."""
    trusted = tenant_of(to) in trusted_tenants
    if not proven and origin.is_other_tenants and trusted:
        return REFUSED
    try:
        tenant = tenant_of(proven or origin.said)
    except ValueError:  # a name that is no topic's says nothing
        return ""
    return "" if tenant in trusted_tenants or tenant == tenant_of(to) else MORE_RIGHTS
