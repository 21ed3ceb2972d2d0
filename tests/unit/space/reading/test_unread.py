"""What could not be read is collected by cause."""

from streaming.space.reading.unread import Unread
from udfs.space.space_report import Unknown


def test_everything_at_and_below_a_path_is_unread() -> None:
    unread = Unread()
    unread.add_path("/managed-ledgers/t/ns", "no permission")
    assert unread.is_unread(["/managed-ledgers/t/ns/persistent/x"])
    assert unread.is_unread(["/managed-ledgers/t/other", "/managed-ledgers/t/ns"])
    assert not unread.is_unread(["/managed-ledgers/t/ns2/persistent/x", "/managed-ledgers/t"])


def test_equal_faults_become_one_with_the_sum_of_their_bounds() -> None:
    unread = Unread()
    unread.add(Unknown(what="a", detail="x", at_least=0, at_most=5))
    assert unread.unknown() == (Unknown(what="a", detail="x", at_least=0, at_most=5),)
    unread.add(Unknown(what="b", detail="x", at_least=0, at_most=7))
    unread.add(Unknown(what="c", detail="y"))
    unread.add(Unknown(what="d", detail="y", at_most=3))
    assert unread.unknown() == (
        Unknown(what="a and 1 more", detail="x", at_least=0, at_most=12),
        Unknown(what="c and 1 more", detail="y"),
    )
