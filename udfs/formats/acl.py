"""ACLs as bytes for the undo journal: a JSON list of entries, with perms as a sum of READ 1, WRITE 2 and so on."""

import json
from collections.abc import Iterable
from typing import NamedTuple


class AclEntry(NamedTuple):
    """The rights of one identity."""

    perms: int
    scheme: str
    id: str


READ, WRITE, CREATE, DELETE, ADMIN, ALL = 1, 2, 4, 8, 16, 31
OPEN = (AclEntry(ALL, "world", "anyone"),)
CREATOR = (AclEntry(ALL, "auth", ""),)  # ZooKeeper replaces this entry by one for each identity of the session


def acl_bytes(entries: Iterable[AclEntry]) -> bytes:
    """Serialise; equal ACLs give equal bytes."""
    return json.dumps([entry._asdict() for entry in entries], separators=(",", ":")).encode()


def acl_entries(acl: bytes) -> list[AclEntry]:
    """Parse the bytes of acl_bytes. Raises ValueError for any others."""
    try:
        return [AclEntry(int(entry["perms"]), str(entry["scheme"]), str(entry["id"])) for entry in json.loads(acl)]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not an ACL: {acl!r}") from error
