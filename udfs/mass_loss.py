"""Whether so many known owners are gone at once that their sources are doubted: of one tenant, or over all tenants.

A metadata store that answers with less than it has (a restored old snapshot, a wrong chroot) shows many owners gone at
once. So does a tenant that deletes most of its topics and asks again, as it may. The rules:
1. The sources are doubted over all tenants where more than `most` of all known owners are gone, and it is not one
   tenant's doing: without the tenant that lost the most owners, more than half of the others' owners are gone as well
   (more than `most` of them, if that is less).
2. Where it is one tenant's doing, only that tenant is doubted.
3. A tenant is doubted, whatever the others show, where more than `most` of its own known owners are gone.
Rules 1 and 3 do not judge `above` or fewer owners that are gone: so many may go in any cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

_SHOWN = 200  # characters of a key, which may be thousands long and would stand in every receipt
_OTHERS_SHARE = 0.5  # beside a tenant that lost most of its owners, less of the others' loss is enough to doubt


@dataclass(frozen=True, slots=True)
class Losses:
    """How many owners of a tenant are known, and how many of them were found gone; example: the key of one that is."""

    known: int
    gone: int = 0
    example: str = ""


@dataclass(frozen=True, slots=True)
class Doubts:
    """Why nothing at all may be deleted ("": it may), and why nothing of single tenants may be, by tenant."""

    everything: str = ""
    tenants: Mapping[str, str] = field(default_factory=dict)


def doubts(tenants: Mapping[str, Losses], *, most: float, above: int) -> Doubts:
    """Judge the losses of all tenants that own something known. most: the largest share that may be gone (1: any)."""
    total = _sum(tenants)
    doubted = {tenant for tenant, each in tenants.items() if each.gone > above and each.gone > most * each.known}
    if total.gone > above and total.gone > most * total.known:
        worst = max(tenants, key=lambda tenant: (tenants[tenant].gone, tenant))
        others = _sum({tenant: each for tenant, each in tenants.items() if tenant != worst})
        if others.gone > min(most, _OTHERS_SHARE) * others.known:
            return Doubts(_told(total, "owners known"))
        doubted.add(worst)
    return Doubts(
        tenants={tenant: _told(tenants[tenant], f"owners known of tenant {tenant}") for tenant in sorted(doubted)}
    )


def _sum(tenants: Mapping[str, Losses]) -> Losses:
    example = next((each.example for each in tenants.values() if each.example), "")
    return Losses(sum(each.known for each in tenants.values()), sum(each.gone for each in tenants.values()), example)


def _told(losses: Losses, whose: str) -> str:
    return f"{losses.gone} of the {losses.known} {whose} are gone at once, for example {losses.example[:_SHOWN]}"
