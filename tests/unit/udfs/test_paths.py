"""Names and paths as Java writes them; other spellings are refused, as they could lead to another owner's znode."""

import string
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from udfs import paths
from udfs.paths import Layout

LOCAL_NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1, max_size=40
).filter(lambda name: name not in {".", ".."})
ENTITIES = st.text(string.ascii_letters + string.digits + "-=:._", min_size=1, max_size=12).filter(
    lambda name: name not in {".", ".."}
)
LEDGER_IDS = st.integers(0, paths.MAX_LEDGER_ID) | st.integers(0, 2**32)


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        pytest.param("plain-Name_1.x", "plain-Name_1.x", id="letters, digits, - _ . stay"),
        pytest.param("a b", "a+b", id="space becomes plus"),
        pytest.param("a+b", "a%2Bb", id="plus is escaped"),
        pytest.param("a*b", "a*b", id="star stays"),
        pytest.param("a~b", "a%7Eb", id="tilde is escaped"),
        pytest.param("a/b", "a%2Fb", id="slash is escaped"),
        pytest.param("100%", "100%25", id="percent is escaped"),
        pytest.param("ü€", "%C3%BC%E2%82%AC", id="UTF-8, upper-case hex"),
        pytest.param("\U0001f600", "%F0%9F%98%80", id="a character outside the BMP is one UTF-8 sequence"),
        pytest.param("!'()@:;,&=$#?[]", "%21%27%28%29%40%3A%3B%2C%26%3D%24%23%3F%5B%5D", id="punctuation"),
    ],
)
def test_names_are_encoded_as_java_does(name: str, encoded: str) -> None:
    assert paths.encode_name(name) == encoded
    assert paths.decode_name(encoded) == name


@pytest.mark.parametrize(
    "encoded",
    [
        pytest.param("a%2fb", id="lower-case hex"),
        pytest.param("a%20b", id="space as %20"),
        pytest.param("a%61", id="a letter escaped"),
        pytest.param("a b", id="raw space"),
        pytest.param("ü", id="raw letter outside ASCII"),
        pytest.param("a%", id="% at the end"),
        pytest.param("a%2", id="one hex digit"),
        pytest.param("a%zz", id="no hex digits"),
        pytest.param("a%FF", id="not UTF-8"),
        pytest.param("%C0%AE", id="overlong UTF-8"),
        pytest.param("%ED%A0%80", id="encoded surrogate"),
        pytest.param("\ud800", id="raw surrogate"),
    ],
)
def test_an_encoded_name_is_refused_unless_java_would_have_written_it(encoded: str) -> None:
    with pytest.raises(ValueError, match="not"):
        paths.decode_name(encoded)


@pytest.mark.parametrize(
    ("topic", "managed_ledger", "full_name"),
    [
        pytest.param("persistent://t/ns/x", "t/ns/persistent/x", "persistent://t/ns/x", id="plain"),
        pytest.param("t/ns/persistent/x", "t/ns/persistent/x", "persistent://t/ns/x", id="managed ledger"),
        pytest.param("persistent://t/ns/a b", "t/ns/persistent/a+b", "persistent://t/ns/a b", id="space"),
        pytest.param("persistent://t/ns/a%20b", "t/ns/persistent/a%2520b", "persistent://t/ns/a%20b", id="raw percent"),
        pytest.param("t/ns/persistent/a%2520b", "t/ns/persistent/a%2520b", "persistent://t/ns/a%20b", id="escaped %"),
        pytest.param("persistent://t/c/ns/x", "t/c/ns/persistent/x", "persistent://t/c/ns/x", id="V1"),
        pytest.param(
            "persistent://t/ns/a\n\tb", "t/ns/persistent/a%0A%09b", "persistent://t/ns/a\n\tb", id="newline and tab"
        ),
        pytest.param("t/ns/persistent/a%00b", "t/ns/persistent/a%00b", "persistent://t/ns/a\x00b", id="encoded NUL"),
        pytest.param("persistent://t/ns/a\x85", "t/ns/persistent/a%C2%85", "persistent://t/ns/a\x85", id="C1 control"),
        pytest.param("t/c/ns/persistent/x", "t/c/ns/persistent/x", "persistent://t/c/ns/x", id="V1 managed ledger"),
        pytest.param(
            "persistent://t/ns/x-partition-3",
            "t/ns/persistent/x-partition-3",
            "persistent://t/ns/x-partition-3",
            id="partition",
        ),
        pytest.param(
            "persistent://persistent/persistent/persistent",
            "persistent/persistent/persistent/persistent",
            "persistent://persistent/persistent/persistent",
            id="everything is called persistent",
        ),
        pytest.param(
            "segment://t/ns/x/0000-7fff-1",
            "t/ns/segment/x/0000-7fff-1",
            "segment://t/ns/x/0000-7fff-1",
            id="segment",
        ),
        pytest.param(
            "t/ns/segment/a%3Ab/0000-ffff-12",
            "t/ns/segment/a%3Ab/0000-ffff-12",
            "segment://t/ns/a:b/0000-ffff-12",
            id="managed ledger of a segment",
        ),
        pytest.param(
            "t/segment/persistent/x",
            "t/segment/persistent/x",
            "persistent://t/segment/x",
            id="namespace called segment",
        ),
        pytest.param(
            "t/c/segment/persistent/x",
            "t/c/segment/persistent/x",
            "persistent://t/c/segment/x",
            id="V1 namespace called segment",
        ),
        pytest.param(
            "t/segment/segment/segment/8000-ffff-0",
            "t/segment/segment/segment/8000-ffff-0",
            "segment://t/segment/segment/8000-ffff-0",
            id="everything is called segment",
        ),
        pytest.param(
            "segment://t/ns/persistent/0000-ffff-0",
            "t/ns/segment/persistent/0000-ffff-0",
            "segment://t/ns/persistent/0000-ffff-0",
            id="scalable topic called persistent",
        ),
    ],
)
def test_a_topic_has_one_managed_ledger_and_one_full_name(topic: str, managed_ledger: str, full_name: str) -> None:
    assert paths.managed_ledger_name(topic) == managed_ledger
    assert paths.topic_of(topic) == full_name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("", id="empty"),
        pytest.param("x", id="bare word"),
        pytest.param("t/ns/x", id="short form, which Pulsar's tools take but no ledger is named by"),
        pytest.param("persistent://", id="scheme only"),
        pytest.param("persistent://x", id="one part"),
        pytest.param("persistent://t/x", id="two parts"),
        pytest.param("persistent://t/ns/", id="empty local name"),
        pytest.param("persistent:///ns/x", id="empty tenant"),
        pytest.param("persistent://t//x", id="empty namespace"),
        pytest.param("persistent://t/c/ns/a/b", id="extra slash"),
        pytest.param("t/ns/persistent/a/b", id="extra slash in a managed ledger"),
        pytest.param("t/ns/persistent/a%2Fb", id="encoded slash"),
        pytest.param("t/ns/persistent/", id="managed ledger without a name"),
        pytest.param("/t/ns/persistent/x", id="leading slash"),
        pytest.param("t/ns/persistent/x/", id="trailing slash"),
        pytest.param("non-persistent://t/ns/x", id="non-persistent"),
        pytest.param("t/ns/non-persistent/x", id="non-persistent managed ledger"),
        pytest.param("PERSISTENT://t/ns/x", id="scheme in capitals"),
        pytest.param("topic://t/ns/x", id="scalable topic, which has no ledgers of its own"),
        pytest.param("segment://t/ns/x", id="segment without a descriptor"),
        pytest.param("segment://t/ns/x/y/0000-ffff-0", id="slash in a segment's topic"),
        pytest.param("segment://t/ns//0000-ffff-0", id="segment of a topic without a name"),
        pytest.param("segment://t/ns/x/0000-FFFF-0", id="hash in capitals"),
        pytest.param("segment://t/ns/x/0-ffff-0", id="short hash"),
        pytest.param("segment://t/ns/x/8000-7fff-0", id="hashes in the wrong order"),
        pytest.param("segment://t/ns/x/0000-ffff-01", id="segment id with a leading zero"),
        pytest.param("segment://t/ns/x/0000-ffff--1", id="negative segment id"),
        pytest.param("segment://t/ns/x/0000-ffff-9223372036854775808", id="segment id of 64 bits"),
        pytest.param("segment://t/ns/x/0000-ffff-\u0663", id="digit of another script"),
        pytest.param("t/ns/segment/x/0000-ffff-0/cursor", id="cursor of a segment"),
        pytest.param("t/c/ns/segment/x/0000-ffff-0", id="segment with a V1 namespace"),
        pytest.param("t/ns/segment/a b/0000-ffff-0", id="segment's topic not encoded"),
        pytest.param("t/ns/segment/x/bad-descriptor", id="managed ledger of no segment"),
        pytest.param("persistent://../ns/x", id="tenant is .."),
        pytest.param("persistent://t/../x", id="namespace is .."),
        pytest.param("persistent://t/ns/..", id="local name is .."),
        pytest.param("persistent://t/ns/.", id="local name is ."),
        pytest.param("t/ns/persistent/..", id="managed ledger ends in .."),
        pytest.param("persistent://t/n s/x", id="space in the namespace"),
        pytest.param("persistent://tü/ns/x", id="tenant outside ASCII"),
        pytest.param("persistent://t/ns\n/x", id="newline after the namespace"),
        pytest.param("persistent://t/ns/\ud800", id="lone surrogate"),
        pytest.param("t/ns/persistent/a b", id="not encoded"),
        pytest.param("persistent://t/ns/" + "x" * paths.MAX_NAME_LENGTH, id="too long"),
        pytest.param("persistent://t/ns/" + "ü" * (paths.MAX_NAME_LENGTH // 6 + 1), id="too long once encoded"),
    ],
)
@pytest.mark.parametrize("function", [paths.managed_ledger_name, paths.topic_of, paths.schema_id_of])
def test_a_name_that_is_no_persistent_topic_is_refused(function: Callable[[str], str], name: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked below
        function(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@settings(max_examples=150, deadline=None)
@given(tenant=ENTITIES, cluster=st.none() | ENTITIES, namespace=ENTITIES, local_name=LOCAL_NAMES)
def test_a_topic_round_trips_through_its_managed_ledger(
    tenant: str, cluster: str | None, namespace: str, local_name: str
) -> None:
    where = f"{tenant}/{namespace}" if cluster is None else f"{tenant}/{cluster}/{namespace}"
    topic = f"persistent://{where}/{local_name}"

    managed_ledger = paths.managed_ledger_name(topic)

    assert paths.topic_of(managed_ledger) == topic
    assert paths.managed_ledger_name(managed_ledger) == managed_ledger
    assert managed_ledger.isascii()
    assert paths.managed_ledger_path(managed_ledger).count("/") == managed_ledger.count("/") + 2
    assert paths.tenant_of(managed_ledger) == tenant
    assert paths.namespace_of(managed_ledger) == where


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60) | st.text("persistent:/%2Ff.\x00 ", max_size=40))
def test_any_text_is_a_topic_or_a_clear_error(text: str) -> None:
    try:
        managed_ledger = paths.managed_ledger_name(text)
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017 - either is right here
    else:
        assert not {"", ".", ".."} & set(managed_ledger.split("/"))


@pytest.mark.parametrize(
    ("local_name", "base", "index"),
    [
        pytest.param("x", "x", -1, id="not a partition"),
        pytest.param("x-partition-0", "x", 0, id="first partition"),
        pytest.param("x-partition-12", "x", 12, id="two digits"),
        pytest.param("x-partition-01", "x-partition-01", -1, id="leading zero"),
        pytest.param("x-partition--1", "x-partition--1", -1, id="negative"),
        pytest.param("x-partition-", "x-partition-", -1, id="no number"),
        pytest.param("x-partition-1a", "x-partition-1a", -1, id="letters after the number"),
        pytest.param("x-partition-+1", "x-partition-+1", -1, id="sign"),
        pytest.param("x-partition-1-partition-2", "x-partition-1", 2, id="only the last suffix counts"),
        pytest.param("x-partition-2147483647", "x", 2147483647, id="largest index"),
        pytest.param("x-partition-2147483648", "x-partition-2147483648", -1, id="one more than the largest index"),
        pytest.param("x-partition-\u0663", "x", 3, id="a digit that Java reads as 3"),
        pytest.param("x-partition-\U0001d7d1", "x-partition-\U0001d7d1", -1, id="a digit that Java does not read"),
    ],
)
def test_partitions_share_the_schema_of_their_topic(local_name: str, base: str, index: int) -> None:
    topic = f"persistent://t/ns/{local_name}"
    assert paths.partition_index(topic) == index
    assert paths.base_topic(topic) == f"persistent://t/ns/{base}"
    assert paths.schema_id_of(topic) == f"t/ns/{paths.encode_name(base)}"


@pytest.mark.parametrize("topic", ["x", "x-partition-3"])
def test_segments_share_the_schema_of_their_topic_which_has_no_partitions(topic: str) -> None:
    segment = f"segment://t/ns/{topic}/0000-7fff-1"
    assert paths.partition_index(segment) == -1
    assert paths.base_topic(segment) == segment
    assert paths.schema_id_of(segment) == f"t/ns/{topic}"


def test_the_parts_of_a_segments_name_are_known() -> None:
    segment = paths.segment_of("t/ns/segment/a%3Ab/4000-7fff-12")
    assert segment == paths.SegmentName("t/ns/a%3Ab", 0x4000, 0x7FFF, 12)
    assert paths.layout_path(segment.topic) == "/topics/t/ns/a%3Ab"
    assert paths.segment_of("persistent://t/ns/x") is None


@pytest.mark.parametrize(
    ("managed_ledger", "may_be_v1"),
    [
        pytest.param("t/ns/segment/persistent/0000-ffff-0", True, id="V1 topic of a namespace called segment"),
        pytest.param("t/ns/segment/x/0000-ffff-0", False, id="V1 names have persistent before the topic"),
    ],
)
def test_a_name_that_may_be_a_v1_topics_is_a_segments_and_shows_it(managed_ledger: str, may_be_v1: bool) -> None:
    segment = paths.segment_of(managed_ledger)
    assert segment is not None
    assert segment.may_be_v1 is may_be_v1
    # both are at the same place
    assert paths.managed_ledger_path(managed_ledger) == f"/managed-ledgers/{managed_ledger}"


def test_the_schema_id_of_a_v1_topic_has_no_cluster() -> None:
    assert paths.schema_id_of("t/c/ns/persistent/a+b-partition-1") == "t/ns/a+b"


def test_a_partition_of_a_topic_without_name_has_no_schema() -> None:
    with pytest.raises(ValueError, match="without a name"):
        paths.schema_id_of("persistent://t/ns/-partition-1")


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        pytest.param("sub", "sub", id="plain"),
        pytest.param("my sub", "my+sub", id="raw subscription"),
        pytest.param("my+sub", "my+sub", id="encoded, though a raw subscription could be called so"),
        pytest.param("a/b", "a%2Fb", id="raw slash"),
        pytest.param("a%2Fb", "a%2Fb", id="encoded slash"),
        pytest.param("a%2fb", "a%252fb", id="not what Java writes, so it is raw"),
        pytest.param("pulsar.repl.us-east", "pulsar.repl.us-east", id="replication cursor"),
        pytest.param("__compaction", "__compaction", id="compaction cursor"),
        pytest.param("tab%09", "tab%09", id="encoded tab, which a broker would have written"),
        pytest.param("a\nb", "a%0Ab", id="newline"),
    ],
)
def test_a_cursor_is_known_by_its_encoded_name(name: str, encoded: str) -> None:
    assert paths.encode_cursor(name) == encoded
    assert paths.encode_cursor(encoded) == encoded


@pytest.mark.parametrize("name", ["", ".", "..", "\ud800", "x" * 5000])
def test_a_name_that_is_no_cursor_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be|control|surrogate|characters"):
        paths.encode_cursor(name)


@pytest.mark.parametrize("name", ["a", "a b", " a", "a+b%", "a/b", "\u00e4\U0001d11e", "..."])
def test_a_subscription_may_have_any_name_that_brokers_can_create(name: str) -> None:
    assert paths.checked_subscription(name) == name


@pytest.mark.parametrize("name", ["", " ", "\u00a0\u3000", "a\n", "\x00", "a\x85b", ".", "..", "\ud800", "x" * 4097])
def test_any_other_name_of_a_subscription_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"name|contains|long"):
        paths.checked_subscription(name)


def test_znodes_of_a_topic() -> None:
    assert paths.managed_ledger_path("persistent://t/ns/a b") == "/managed-ledgers/t/ns/persistent/a+b"
    assert paths.cursor_path("t/ns/persistent/x", "my+sub") == "/managed-ledgers/t/ns/persistent/x/my+sub"
    assert paths.schema_path("t/ns/a+b") == "/schemas/t/ns/a+b"
    assert paths.schema_path("t/ns/x", root="/pulsar/schemas/") == "/pulsar/schemas/t/ns/x"


@pytest.mark.parametrize("cursor", ["", "..", "a/b", "a\x00b"])
def test_a_cursor_path_never_leaves_its_managed_ledger(cursor: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be|slash|control"):
        paths.cursor_path("t/ns/persistent/x", cursor)


@pytest.mark.parametrize("schema_id", ["", "x", "t/ns", "t/ns/", "t/ns/a b", "t/c/ns/x", "../ns/x", "t/ns/..", "t//x"])
def test_a_name_that_is_no_schema_id_is_refused(schema_id: str) -> None:
    with pytest.raises(ValueError, match=r"is no|not|cannot be"):
        paths.schema_path(schema_id)


@pytest.mark.parametrize(
    ("data", "layout"),
    [
        pytest.param(
            b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1", Layout.HIERARCHICAL, id="hierarchical"
        ),
        pytest.param(
            b"2\norg.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory:1",
            Layout.LONG_HIERARCHICAL,
            id="long-hierarchical",
        ),
        pytest.param(
            b"2\norg.apache.pulsar.metadata.bookkeeper.PulsarLedgerManagerFactory:1",
            Layout.HIERARCHICAL,
            id="Pulsar's metadata driver",
        ),
        pytest.param(b"1\nhierarchical:1", Layout.HIERARCHICAL, id="format 1"),
        pytest.param(b"1\nlonghierarchical:1\n", Layout.LONG_HIERARCHICAL, id="format 1 with a newline at its end"),
    ],
)
def test_layouts_that_are_supported(data: bytes, layout: Layout) -> None:
    assert paths.parse_layout(data) is layout


@pytest.mark.parametrize(
    ("data", "named"),
    [
        pytest.param(b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1", "FlatLedgerManager", id="flat"),
        pytest.param(
            b"2\norg.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory:1", "LegacyHierarchical", id="legacy"
        ),
        pytest.param(b"2\ncom.example.Factory:1", "com.example.Factory", id="unknown class"),
        pytest.param(b"1\nflat:1", "flat", id="format 1, flat"),
        pytest.param(b"2\nhierarchical:1", "hierarchical", id="type name in format 2"),
        pytest.param(b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:2", "version '2'", id="version"),
        pytest.param(b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory", "version ''", id="no version"),
        pytest.param(b"3\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1", "format", id="format 3"),
        pytest.param(b"2", "format", id="cut short"),
        pytest.param(b"", "format", id="empty"),
        pytest.param(b"\xff\xfe", "not text", id="binary"),
    ],
)
def test_any_other_layout_is_refused_by_name(data: bytes, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        paths.parse_layout(data)


@pytest.mark.parametrize(
    ("ledger_id", "hierarchical", "long_hierarchical"),
    [
        (0, "/ledgers/00/0000/L0000", "/ledgers/000/0000/0000/0000/L0000"),
        (1, "/ledgers/00/0000/L0001", "/ledgers/000/0000/0000/0000/L0001"),
        (278117, "/ledgers/00/0027/L8117", "/ledgers/000/0000/0000/0027/L8117"),
        (2147483646, "/ledgers/21/4748/L3646", "/ledgers/000/0000/0021/4748/L3646"),
        (2147483647, "/ledgers/000/0000/0021/4748/L3647", "/ledgers/000/0000/0021/4748/L3647"),
        (5868811882, "/ledgers/000/0000/0058/6881/L1882", "/ledgers/000/0000/0058/6881/L1882"),
        (2**63 - 1, "/ledgers/922/3372/0368/5477/L5807", "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_ledger_paths(ledger_id: int, hierarchical: str, long_hierarchical: str) -> None:
    assert paths.ledger_path(Layout.HIERARCHICAL, "/ledgers", ledger_id) == hierarchical
    assert paths.ledger_path(Layout.LONG_HIERARCHICAL, "/ledgers", ledger_id) == long_hierarchical


@pytest.mark.parametrize("ledger_id", [-1, -(2**63), 2**63])
@pytest.mark.parametrize("layout", list(Layout))
def test_an_impossible_id_has_no_path(layout: Layout, ledger_id: int) -> None:
    with pytest.raises(ValueError, match="not a ledger id"):
        paths.ledger_path(layout, "/ledgers", ledger_id)


@settings(max_examples=150, deadline=None)
@given(layout=st.sampled_from(Layout), root=st.sampled_from(["/ledgers", "/a/b/ledgers/", "/"]), ledger_id=LEDGER_IDS)
@example(layout=Layout.HIERARCHICAL, root="/ledgers", ledger_id=paths.FIRST_LONG_ID - 1)
@example(layout=Layout.HIERARCHICAL, root="/ledgers", ledger_id=paths.FIRST_LONG_ID)
def test_a_path_leads_back_to_its_ledger(layout: Layout, root: str, ledger_id: int) -> None:
    path = paths.ledger_path(layout, root, ledger_id)
    assert paths.ledger_id_of(layout, root, path) == ledger_id


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/ledgers/LAYOUT", id="LAYOUT"),
        pytest.param("/ledgers/INSTANCEID", id="INSTANCEID"),
        pytest.param("/ledgers/idgen/ID-0000000001", id="idgen"),
        pytest.param("/ledgers/idgen-long/HOB-0000000001", id="idgen-long"),
        pytest.param("/ledgers/available/127.0.0.1:3181", id="bookie"),
        pytest.param("/ledgers/underreplication/ledgers/0000/0000/0004/3e65/urL0000278117", id="under-replicated"),
        pytest.param("/ledgers", id="root"),
        pytest.param("/ledgers/", id="root with slash"),
        pytest.param("/ledgers/00", id="top-level parent"),
        pytest.param("/ledgers/00/0000", id="parent"),
        pytest.param("/ledgers/00/0000/0001", id="leaf without L"),
        pytest.param("/ledgers/00/0000/L001", id="short leaf"),
        pytest.param("/ledgers/00/0000/L0001/x", id="below a ledger"),
        pytest.param("/ledgers/00/0000/L\u0660\u0660\u0660\u0661", id="digits of another script"),
        pytest.param("/other/00/0000/L0001", id="another root"),
        pytest.param("/ledgers2/00/0000/L0001", id="a root that starts the same"),
        pytest.param("/ledgers/000/0000/0000/0000/L0001", id="long form of a short id"),
        pytest.param("/ledgers/21/4748/L3647", id="short form of a long id"),
        pytest.param("/ledgers/922/3372/0368/5477/L5808", id="beyond 63 bits"),
    ],
)
def test_a_path_that_is_no_ledgers_has_no_id(path: str) -> None:
    assert paths.ledger_id_of(Layout.HIERARCHICAL, "/ledgers", path) is None


@pytest.mark.parametrize("root", ["ledgers", "", "//ledgers"])
def test_a_root_is_an_absolute_path(root: str) -> None:
    with pytest.raises(ValueError, match="znode path"):
        paths.ledger_path(Layout.HIERARCHICAL, root, 1)


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        pytest.param("carts", "persistent://public/default/carts", id="pulsar-admin: in public/default"),
        pytest.param("shop/prod/carts", "persistent://shop/prod/carts", id="pulsar-admin, and our tables"),
        pytest.param("shop/prod/a b%2Fc", "persistent://shop/prod/a b%2Fc", id="our tables do not encode names"),
        pytest.param("persistent://shop/prod/carts", "persistent://shop/prod/carts", id="a full name"),
        pytest.param("shop/prod/persistent/a%2Fb", None, id="a managed ledger's decoded name has a slash"),
        pytest.param("shop/prod/persistent/a+b", "persistent://shop/prod/a b", id="a managed ledger"),
        pytest.param("shop/prod/persistent", "persistent://shop/prod/persistent", id="a topic named persistent"),
        pytest.param("persistent/prod/carts", "persistent://persistent/prod/carts", id="a tenant named persistent"),
        pytest.param("shop/prod/carts-partition-3", "persistent://shop/prod/carts-partition-3", id="a partition"),
        pytest.param("shop/eu/prod/carts", "persistent://shop/eu/prod/carts", id="a V1 name"),
        pytest.param("shop/eu/prod/persistent/carts", "persistent://shop/eu/prod/carts", id="a V1 managed ledger"),
        pytest.param("segment://shop/prod/carts/0000-ffff-0", "segment://shop/prod/carts/0000-ffff-0", id="a segment"),
        pytest.param(
            "shop/prod/segment/a+b/0000-ffff-0", "segment://shop/prod/a b/0000-ffff-0", id="a segment's managed ledger"
        ),
        pytest.param("shop/eu/segment/carts", "persistent://shop/eu/segment/carts", id="V1 namespace called segment"),
        pytest.param("shop/prod", None, id="a namespace"),
        pytest.param("a/b/c/d/e", None, id="too many parts"),
        pytest.param("non-persistent://shop/prod/carts", None, id="a topic without ledgers"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_a_topic_may_be_named_as_pulsar_admin_and_our_tables_do(name: str, topic: str | None) -> None:
    if topic is None:
        with pytest.raises(ValueError):  # noqa: PT011  the messages differ
            paths.topic_named(name)
    else:
        assert paths.topic_named(name) == topic


@given(ENTITIES, ENTITIES, LOCAL_NAMES)
def test_a_name_that_our_tables_print_names_the_topic(tenant: str, namespace: str, local: str) -> None:
    topic = f"persistent://{tenant}/{namespace}/{local}"
    assert paths.topic_named(topic.removeprefix("persistent://")) == topic
    assert paths.topic_named(paths.managed_ledger_name(topic)) == topic
