"""The contract of ObjectStore, for the fake and for an S3 server."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streaming.adapters.memory.objects import MemoryObjects
from streaming.adapters.s3.calls import S3Settings
from streaming.adapters.s3.objects import S3Objects
from streaming.errors import RefusedError, UnavailableError
from streaming.ports import CHANGED, ObjectStore
from tests.contract.s3_server import S3Server, bulk_delete, s3_running
from udfs.records import StoredObject


@dataclass
class Bucket:
    """The store under test, and operations of other clients on the bucket."""

    store: ObjectStore
    put: Callable[[str, bytes, dict[str, str]], object]
    begin_upload: Callable[[str], object]
    remove: Callable[[], object]
    fill: Callable[[dict[str, bytes]], object]


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    with s3_running() as server:
        yield server


@pytest.fixture(scope="module")
def credentials_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("s3") / "credentials"
    path.write_text("[default]\naws_access_key_id = any\naws_secret_access_key = any\n")
    return str(path)


def memory_bucket(*, versioned: bool) -> Bucket:
    store = MemoryObjects(versioned=versioned)

    def remove() -> None:
        store.gone = True

    def fill(objects: dict[str, bytes]) -> None:
        for key, content in objects.items():
            store.put(key, content)

    return Bucket(store, store.put, store.begin_upload, remove, fill)


def s3_bucket(server: S3Server, credentials_file: str, *, versioned: bool) -> Bucket:
    client: Any = server.client()
    name = f"contract-{uuid4().hex[:20]}"
    client.create_bucket(Bucket=name)
    if versioned:
        client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})

    def put(key: str, content: bytes, metadata: dict[str, str]) -> None:
        client.put_object(Bucket=name, Key=key, Body=content, Metadata=metadata)

    def begin_upload(key: str) -> None:
        upload = client.create_multipart_upload(Bucket=name, Key=key)["UploadId"]
        client.upload_part(Bucket=name, Key=key, UploadId=upload, PartNumber=1, Body=b"part")

    return Bucket(
        S3Objects(S3Settings(endpoint=server.endpoint, bucket=name, credentials_file=credentials_file)),
        put,
        begin_upload,
        lambda: client.delete_bucket(Bucket=name),
        lambda objects: server.fill(name, objects),
    )


@pytest.fixture(params=["memory", "s3"])
def new_bucket(request: pytest.FixtureRequest) -> Callable[..., Bucket]:
    def make(*, versioned: bool = False) -> Bucket:
        if request.param == "memory":
            return memory_bucket(versioned=versioned)
        server, credentials = (request.getfixturevalue(name) for name in ("s3_server", "credentials_file"))
        return s3_bucket(server, credentials, versioned=versioned)

    return make


@pytest.fixture
def bucket(new_bucket: Callable[..., Bucket]) -> Bucket:
    return new_bucket()


def test_reads_are_in_order_with_content_and_metadata_and_absent_objects_are_none(bucket: Bucket) -> None:
    bucket.put("b", b"second", {"Role": "index", "PulsarClusterName": "sandbox"})
    bucket.put("a", b"", {})

    first, missing, second = bucket.store.read_many(["a", "nothing", "b"])

    assert missing is None
    assert isinstance(first, StoredObject)
    assert isinstance(second, StoredObject)
    assert (first.content, first.size_bytes, first.version_id) == (b"", 0, "")
    assert (second.content, second.size_bytes) == (b"second", 6)
    assert second.user_metadata == {"role": "index", "pulsarclustername": "sandbox"}
    assert second.last_modified_ms > 1_600_000_000_000


def test_heads_return_the_same_without_content(bucket: Bucket) -> None:
    bucket.put("a", b"content", {"role": "data"})

    there, missing = bucket.store.head_many(["a", "b"])
    (read,) = bucket.store.read_many(["a"])

    assert missing is None
    assert isinstance(there, StoredObject)
    assert isinstance(read, StoredObject)
    assert there.content is None
    assert (there.size_bytes, there.user_metadata) == (7, {"role": "data"})
    assert there.last_modified_ms == read.last_modified_ms


def test_empty_requests_are_allowed(bucket: Bucket) -> None:
    assert bucket.store.read_many([]) == []
    assert bucket.store.head_many([]) == []
    assert bucket.store.existing([]) == set()
    assert bucket.store.delete([]) == {}
    assert bucket.store.unfinished_uploads([]) == []
    assert bucket.store.abort_uploads([]) == {}


def test_a_deleted_key_is_gone_and_a_second_delete_is_no_error(bucket: Bucket) -> None:
    bucket.put("a", b"1", {})
    bucket.put("b", b"2", {})

    assert bucket.store.delete(["a", "never there"]) == {}
    assert bucket.store.delete(["a"]) == {}

    assert bucket.store.existing(["a", "b", "never there"]) == {"b"}
    assert bucket.store.read_many(["a"]) == [None]


def test_keys_are_listed_in_order_by_prefix(bucket: Bucket) -> None:
    for key in ("b-2", "a-1", "b-1"):
        bucket.put(key, key.encode(), {})

    assert [(key, size) for key, size, _ in bucket.store.list_keys("b-")] == [("b-1", 3), ("b-2", 3)]
    assert [key for key, _, _ in bucket.store.list_keys()] == ["a-1", "b-1", "b-2"]


def test_existing_keys_are_distinguished_from_their_neighbours(bucket: Bucket) -> None:
    """Enough keys for listings instead of HEAD; a key is the prefix of another key."""
    present = [f"{number:04d}-ledger-{number % 7}" for number in range(0, 300, 2)]
    bucket.fill(dict.fromkeys([*present, *(key + "1" for key in present)], b"x"))
    keys = [f"{number:04d}-ledger-{number % 7}" for number in range(300)]

    assert bucket.store.existing(keys) == set(present)


def test_unfinished_uploads_are_found_and_aborted(bucket: Bucket) -> None:
    bucket.begin_upload("crashed")
    bucket.begin_upload("crashed")
    bucket.begin_upload("crashed-2")
    bucket.put("whole", b"x", {})

    uploads = bucket.store.unfinished_uploads(["crashed", "whole"])

    assert [upload.key for upload in uploads] == ["crashed", "crashed"]
    assert all(upload.initiated_ms > 0 for upload in uploads)  # moto dates every upload to 2010
    assert bucket.store.existing(["crashed"]) == set()
    assert bucket.store.abort_uploads(uploads) == {}
    assert bucket.store.abort_uploads(uploads) == {}
    assert bucket.store.unfinished_uploads(["crashed", "whole"]) == []
    assert len(bucket.store.unfinished_uploads(["a", "b", "c", "d", "e", "crashed-2"])) == 1


def test_a_bucket_with_versions_can_undelete(
    new_bucket: Callable[..., Bucket],
) -> None:
    bucket = new_bucket(versioned=True)
    bucket.put("a", b"content", {})
    (before,) = bucket.store.read_many(["a"])

    assert bucket.store.delete(["a"]) == {}
    assert bucket.store.existing(["a"]) == set()
    assert bucket.store.head_many(["a"]) == [None]
    assert bucket.store.undelete(["a", "never there"]) == {"a"}

    assert bucket.store.read_many(["a"]) == [before]
    assert isinstance(before, StoredObject)
    assert before.version_id


def test_a_bucket_without_versions_can_not_undelete(bucket: Bucket) -> None:
    bucket.put("a", b"x", {})
    bucket.store.delete(["a"])

    assert bucket.store.undelete(["a"]) == set()


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda store: store.read_many(["a"]), id="read"),
        pytest.param(lambda store: store.head_many(["a"]), id="head"),
        pytest.param(lambda store: store.existing(["a"]), id="existing, few"),
        pytest.param(lambda store: store.existing([str(n) for n in range(100)]), id="existing, many"),
        pytest.param(lambda store: store.delete(["a"]), id="delete"),
        pytest.param(lambda store: list(store.list_keys()), id="list"),
        pytest.param(lambda store: store.unfinished_uploads(["a"]), id="uploads"),
    ],
)
def test_a_missing_bucket_is_refused_and_is_no_absent_object(
    bucket: Bucket, ask: Callable[[ObjectStore], object]
) -> None:
    bucket.remove()

    with pytest.raises(RefusedError, match="bucket"):
        ask(bucket.store)


@pytest.fixture(params=["memory", "s3", "s3, single deletes"])
def comparing(request: pytest.FixtureRequest) -> Iterator[Callable[..., Bucket]]:
    """Return a function that creates a bucket whose deletes compare or ignore ETags."""
    heal: list[Callable[[], object]] = []

    def make(*, compares: bool, versioned: bool = False) -> Bucket:
        if request.param == "memory":
            memory = memory_bucket(versioned=versioned)
            memory.store.compares = compares  # type: ignore[attr-defined]
            return memory
        server: S3Server = request.getfixturevalue("s3_server")
        server.compares_etags = compares
        heal.append(server.heal)
        if request.param != "s3":
            server.answer("NotImplemented", status="501 Not Implemented", times=10_000, match=bulk_delete)
        return s3_bucket(server, request.getfixturevalue("credentials_file"), versioned=versioned)

    yield make
    for restore in heal:
        restore()


@pytest.mark.parametrize("versioned", [False, True], ids=["one version", "several versions"])
@pytest.mark.parametrize("compares", [True, False], ids=["compares", "ignores"])
def test_the_test_of_etags_leaves_nothing(comparing: Callable[..., Bucket], compares: bool, versioned: bool) -> None:
    bucket = comparing(compares=compares, versioned=versioned)
    bucket.put("a", b"1", {})

    assert bucket.store.compares_etags() is compares
    assert bucket.store.compares_etags() is compares
    assert [key for key, _size, _ms in bucket.store.list_keys()] == ["a"]


def test_a_store_that_compares_etags_keeps_changed_objects(comparing: Callable[..., Bucket]) -> None:
    bucket = comparing(compares=True)
    for key in ("same", "another", "unjudged", "gone"):
        bucket.put(key, b"as judged", {})
    heads = bucket.store.head_many(["same", "another", "gone"])
    etags = {
        key: head.etag
        for key, head in zip(("same", "another", "gone"), heads, strict=True)
        if isinstance(head, StoredObject)
    }
    bucket.put("another", b"stored again", {})
    bucket.store.delete(["gone"])

    errors = bucket.store.delete(["same", "another", "unjudged", "gone"], etags)

    assert errors == {"another": CHANGED}
    assert bucket.store.existing(["same", "another", "unjudged", "gone"]) == {"another"}


def test_a_store_that_ignores_etags_deletes_changed_objects(comparing: Callable[..., Bucket]) -> None:
    bucket = comparing(compares=False)
    bucket.put("a", b"1", {})

    assert bucket.store.delete(["a"], {"a": '"another"'}) == {}
    assert bucket.store.existing(["a"]) == set()


def test_without_permission_to_store_deletes_carry_no_etag(s3_server: S3Server, credentials_file: str) -> None:
    s3_server.compares_etags = True
    bucket = s3_bucket(s3_server, credentials_file, versioned=False)
    s3_server.answer(
        "AccessDenied", status="403 Forbidden", times=10, match=lambda environ: environ["REQUEST_METHOD"] == "PUT"
    )

    assert bucket.store.compares_etags() is False
    s3_server.heal()
    assert bucket.store.compares_etags() is False, "a worker asks once"
    assert list(bucket.store.list_keys()) == []


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("InternalError", "500 Internal Server Error"),
        ("ExpiredToken", "400 Bad Request"),
        ("RequestTimeTooSkewed", "403 Forbidden"),
        ("NoSuchBucket", "404 Not Found"),
    ],
)
def test_the_test_of_etags_is_repeated_after_a_temporary_failure(
    s3_server: S3Server, credentials_file: str, code: str, status: str
) -> None:
    s3_server.compares_etags = True
    patient = s3_bucket(s3_server, credentials_file, versioned=False).store
    assert isinstance(patient, S3Objects)
    store = S3Objects(replace(patient.settings, patience_seconds=0))
    s3_server.answer(code, status=status, times=10)
    with pytest.raises(UnavailableError):
        store.compares_etags()
    s3_server.heal()

    s3_server.compares_etags = True
    assert store.compares_etags() is True
    s3_server.heal()
    store.close()
