"""Decides to which request topic a dead letter may be published again, or why it stays.

A request has the rights of the topic that it is published to, and any client that can write to the dead-letter topic
can write any letter with any properties. So:
1. Only our own receipts prove which request topic a letter came from. It goes back there.
2. If no receipt proves it, the operator names the topic.
3. The operator can't give a letter more rights than it had, as far as this is known: neither those of another tenant's
   topic, nor those of a trusted tenant's topic, unless it came from a trusted tenant's topic. Receipts tell where it
   came from, else its own properties: a forged one can only take rights away. If neither tells, the operator decides.
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
    """The letter stays in the dead-letter topic."""

    why: str  # for the operator, without any text of the letter


@dataclass(frozen=True, slots=True)
class LetterOrigin:
    """The request topic that a letter came from."""

    proven: Collection[str]  # the request topics that our receipts of this very request name
    claimed: str = ""  # REAL_TOPIC of the letter's own properties; "": none
    is_other_tenants: bool = False  # whether its own properties contain OTHER_TENANT


def replay_target(
    origin: LetterOrigin,
    to: str,
    trusted_tenants: Collection[str],
    *,
    is_request_topic: Callable[[str], bool],
    is_there: Callable[[str], bool],
) -> str | Stays:
    """Return the topic, or why the letter stays.

    Args:
        origin: where the letter came from.
        to: the topic that the operator named; "": none.
        trusted_tenants: their request topics may name any owner.
        is_request_topic: whether the service reads a topic.
        is_there: whether a topic exists and is partitioned.
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


def _more_rights(origin: LetterOrigin, proven: str, to: str, trusted_tenants: Collection[str]) -> str:
    """Return why `to` would give a letter rights that it did not have; "" if it would not."""
    trusted = tenant_of(to) in trusted_tenants
    if not proven and origin.is_other_tenants and trusted:
        return REFUSED
    try:
        tenant = tenant_of(proven or origin.claimed)
    except ValueError:  # the claimed name is no topic name, so it is no evidence
        return ""
    return "" if tenant in trusted_tenants or tenant == tenant_of(to) else MORE_RIGHTS
