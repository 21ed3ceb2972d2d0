"""Doubts the sources if too many known owners are gone at once: owners of one tenant, or of all tenants.

A metadata store that answers with less than it has (a restored old snapshot, a wrong chroot) shows many owners gone at
once. So does a tenant that deletes most of its topics and then sends requests for them, as it may. The rules:
1. The sources are doubted over all tenants if more than `most` of all known owners are gone, and a single tenant does
   not explain it: without the tenant that lost the most owners, more than half of the others' owners are gone as well
   (more than `most` of them, if that is less).
2. If a single tenant explains it, only that tenant is doubted.
3. A tenant is doubted, whatever the others show, if more than `most` of its own known owners are gone.
Rules 1 and 3 do not apply to `above` or fewer owners that are gone: any cluster may lose that many.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

_SHOWN = 200  # characters of a key, which may be thousands long and would appear in every receipt
_OTHERS_SHARE = 0.5  # if one tenant lost most owners, a smaller loss among the others already counts


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of a tenant."""

    known: int  # owners that we know
    gone: int = 0  # how many of them are gone
    example: str = ""  # the key of an owner that is gone


@dataclass(frozen=True, slots=True)
class Doubts:
    """Why deletes must stop."""

    everything: str = ""  # for all tenants; "": they may continue
    tenants: Mapping[str, str] = field(default_factory=dict)  # tenant -> why deletes of that tenant must stop


def doubts(tenants: Mapping[str, Losses], *, most: float, above: int) -> Doubts:
    """Judge the losses of all tenants that have known owners. most: the largest share that may be gone (1: any)."""
    total = _sum(tenants)
    doubted = {tenant for tenant, lost in tenants.items() if lost.gone > above and lost.gone > most * lost.known}
    if total.gone > above and total.gone > most * total.known:
        worst = max(tenants, key=lambda tenant: (tenants[tenant].gone, tenant))
        others = _sum({tenant: lost for tenant, lost in tenants.items() if tenant != worst})
        if others.gone > min(most, _OTHERS_SHARE) * others.known:
            return Doubts(_described(total, "owners known"))
        doubted.add(worst)
    return Doubts(
        tenants={tenant: _described(tenants[tenant], f"owners known of tenant {tenant}") for tenant in sorted(doubted)}
    )


def _sum(tenants: Mapping[str, Losses]) -> Losses:
    example = next((lost.example for lost in tenants.values() if lost.example), "")
    return Losses(sum(lost.known for lost in tenants.values()), sum(lost.gone for lost in tenants.values()), example)


def _described(losses: Losses, owners: str) -> str:
    return f"{losses.gone} of the {losses.known} {owners} are gone at once, for example {losses.example[:_SHOWN]}"
