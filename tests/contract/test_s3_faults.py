"""The S3 adapter with a server that throttles, lies, breaks connections, has fewer features, and recovers."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streaming.adapters.s3 import throttling
from streaming.adapters.s3.calls import S3Settings
from streaming.adapters.s3.objects import MAX_CONTENT_BYTES, S3Objects
from streaming.errors import RefusedError, UnavailableError
from streaming.ports import Unreadable
from tests.contract.s3_server import BREAK, HOST, S3Server, bulk_delete, reads, s3_running
from udfs.records import StoredObject

pytestmark = pytest.mark.slow  # for a server that answers late, or not at all

SECRET = "do-not-tell-anyone"


@dataclass
class FaultyBucket:
    """A bucket on a server with faults, and an impatient client of it."""

    server: S3Server
    bucket: str
    store: S3Objects
    credentials: Path

    def fill(self, count: int) -> list[str]:
        keys = [f"{number:08x}-object" for number in range(count)]
        self.server.fill(self.bucket, dict.fromkeys(keys, b"x"), {"role": "data"})
        return keys

    def impatient(self) -> S3Objects:
        return S3Objects(replace(self.store.settings, patience_seconds=1))

    def patient(self) -> S3Objects:
        """Return a client that repeats no request on a slow machine, so that requests can be counted."""
        return S3Objects(replace(self.store.settings, timeout_seconds=60, patience_seconds=120))

    def left(self) -> list[str]:
        return self.server.keys(self.bucket)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    with s3_running() as server:
        yield server


@pytest.fixture
def faulty(s3_server: S3Server, tmp_path: Path) -> Iterator[FaultyBucket]:
    bucket = f"faults-{uuid4().hex[:20]}"
    s3_server.client().create_bucket(Bucket=bucket)
    credentials = tmp_path / "credentials"
    write_credentials(credentials, "first")
    settings = S3Settings(
        endpoint=s3_server.endpoint,
        bucket=bucket,
        credentials_file=str(credentials),
        timeout_seconds=2,
        patience_seconds=10,
        concurrency=4,
    )
    store = S3Objects(settings)
    yield FaultyBucket(s3_server, bucket, store, credentials)
    store.close()
    s3_server.heal()


def write_credentials(path: Path, key: str) -> None:
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n")


def test_a_few_refusals_for_load_are_retried(faulty: FaultyBucket) -> None:
    keys = faulty.fill(10)
    refusals = throttling.count()
    faulty.server.answer("SlowDown", times=3)

    assert faulty.store.delete(keys) == {}

    assert faulty.left() == []
    assert faulty.store.calls.requests - 1 == throttling.count() - refusals == 3
    assert faulty.store.writes.rate is not None


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param("SlowDown", "503 Slow Down", id="SlowDown"),
        pytest.param("InternalError", "500 Internal Server Error", id="InternalError", marks=pytest.mark.long),
        pytest.param("TooManyRequests", "429 Too Many Requests", id="TooManyRequests", marks=pytest.mark.long),
    ],
)
def test_refusals_longer_than_the_patience_are_an_unknown_outcome(faulty: FaultyBucket, code: str, status: str) -> None:
    keys = faulty.fill(10)
    faulty.server.answer(code, status=status, times=10_000)

    with pytest.raises(UnavailableError, match=code):
        faulty.impatient().delete(keys)

    assert faulty.left() == keys
    faulty.server.heal()
    assert faulty.store.delete(keys) == {}


def test_a_bucket_that_did_not_answer_gets_no_requests_for_a_while(faulty: FaultyBucket) -> None:
    """Otherwise each chunk with a request for it would wait for the whole patience and delay other buckets."""
    faulty.fill(1)
    store = S3Objects(replace(faulty.store.settings, patience_seconds=1, rest_seconds=3600))
    faulty.server.stop()
    with pytest.raises(UnavailableError):
        store.head_many(["00000000-object"])
    requests = store.calls.requests
    faulty.server.start()

    for _ in range(3):
        with pytest.raises(UnavailableError, match="the next attempt is in"):
            store.head_many(["00000000-object"])

    assert store.calls.requests == requests
    store.close()


def _resting_store(faulty: FaultyBucket, code: str, status: str = "503 Slow Down") -> S3Objects:
    """Return a store that got this answer for too long and rests for a millisecond; its bucket has an object."""
    faulty.fill(1)
    store = S3Objects(replace(faulty.store.settings, patience_seconds=1, rest_seconds=0.001))
    faulty.server.answer(code, status=status, times=10_000)
    with pytest.raises(UnavailableError):
        store.head_many(["00000000-object"])
    return store


def test_after_the_rest_a_bucket_that_answers_gets_all_requests(faulty: FaultyBucket) -> None:
    store = _resting_store(faulty, "InternalError", status="500 Internal Server Error")
    requests = store.calls.requests

    time.sleep(0.01)
    with pytest.raises(UnavailableError):
        store.head_many(["00000000-object"])
    assert store.calls.requests == requests + 1

    faulty.server.heal()
    time.sleep(0.01)
    assert isinstance(store.head_many(["00000000-object"])[0], StoredObject)
    faulty.server.answer("InternalError", status="500 Internal Server Error", times=1)
    assert isinstance(store.head_many(["00000000-object"])[0], StoredObject)
    store.close()


def test_after_the_rest_a_single_refusal_for_load_is_no_outage(faulty: FaultyBucket) -> None:
    store = _resting_store(faulty, "SlowDown")
    faulty.server.heal()
    time.sleep(0.01)

    faulty.server.answer("SlowDown", times=1)
    assert isinstance(store.head_many(["00000000-object"])[0], StoredObject)
    store.close()


def test_after_the_rest_repeated_refusals_for_load_start_another_rest(faulty: FaultyBucket) -> None:
    store = _resting_store(faulty, "SlowDown")
    requests = store.calls.requests
    time.sleep(0.01)

    with pytest.raises(UnavailableError, match="does not answer"):
        store.head_many(["00000000-object"])
    assert store.calls.requests == requests + 3
    store.close()


def test_under_a_limit_the_rate_settles_and_all_keys_are_deleted(faulty: FaultyBucket) -> None:
    keys = faulty.fill(4_000)
    faulty.server.keys_per_s = 1_000  # a busy machine is still faster

    assert faulty.store.delete(keys) == {}

    assert faulty.left() == []
    # a busy machine does not reach the limit
    assert (faulty.store.writes.rate is not None) == (faulty.server.throttled > 0)
    assert faulty.server.throttled < 30


def test_keys_with_transient_errors_are_retried_and_refused_keys_are_named(faulty: FaultyBucket) -> None:
    keys = faulty.fill(20)
    faulty.server.refused = {keys[3]: "AccessDenied", keys[5]: "SlowDown", keys[6]: "InternalError"}
    tries = faulty.store.calls

    def heal_later(environ: dict[str, Any]) -> bool:
        if bulk_delete(environ) and tries.requests > 2:
            faulty.server.refused.pop(keys[5], None)
            faulty.server.refused.pop(keys[6], None)
        return False

    faulty.server.answer("never", match=heal_later)

    errors = faulty.store.delete(keys)

    assert list(errors) == [keys[3]]
    assert "AccessDenied" in errors[keys[3]]
    assert faulty.left() == [keys[3]]


def test_keys_that_stay_transient_are_an_unknown_outcome(faulty: FaultyBucket) -> None:
    keys = faulty.fill(3)
    faulty.server.refused = {keys[1]: "SlowDown"}

    with pytest.raises(UnavailableError, match="1 keys"):
        faulty.impatient().delete(keys)

    assert faulty.left() == [keys[1]]


def test_a_late_answer_is_waited_for(faulty: FaultyBucket) -> None:
    keys = faulty.fill(3)
    faulty.server.delay_s = 0.3

    assert faulty.store.delete(keys) == {}
    assert faulty.store.existing(keys) == set()


def test_a_missing_answer_is_an_unknown_outcome(faulty: FaultyBucket) -> None:
    keys = faulty.fill(3)
    faulty.server.delay_s = 2.5

    with pytest.raises(UnavailableError, match="does not answer"):
        faulty.impatient().existing(keys)


def test_a_broken_connection_is_retried(faulty: FaultyBucket) -> None:
    keys = faulty.fill(10)
    faulty.server.answer("", status=BREAK, times=2)

    assert faulty.store.delete(keys) == {}
    assert faulty.left() == []


def test_a_batch_continues_after_a_restart_of_the_server(faulty: FaultyBucket) -> None:
    keys = faulty.fill(4_000)
    faulty.server.stop_after = 2

    with pytest.raises(UnavailableError):
        faulty.impatient().delete(keys)
    left = faulty.left()
    assert 0 < len(left) < len(keys)
    faulty.server.heal()
    faulty.server.start()

    assert faulty.store.delete(keys) == {}
    assert faulty.left() == []


def test_an_unreachable_server_is_an_unknown_outcome(faulty: FaultyBucket) -> None:
    unreachable = S3Objects(
        S3Settings(
            endpoint=f"http://{HOST}:1",
            bucket="unreachable",
            credentials_file=str(faulty.credentials),
            patience_seconds=0.5,
        )
    )

    with pytest.raises(UnavailableError, match="does not answer"):
        unreachable.read_many(["a"])


def test_deletes_that_report_success_and_do_nothing_are_detected_by_reads(faulty: FaultyBucket) -> None:
    keys = faulty.fill(100)
    faulty.server.lies = True

    assert faulty.store.delete(keys) == {}
    assert faulty.store.existing(keys) == set(keys)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param("NotImplemented", "501 Not Implemented", id="as Google answers"),
        pytest.param("NotImplemented", "400 Bad Request", id="as Google answered before", marks=pytest.mark.long),
        pytest.param("MethodNotAllowed", "405 Method Not Allowed", id="as others answer", marks=pytest.mark.long),
    ],
)
def test_a_store_without_bulk_deletes_gets_single_deletes(faulty: FaultyBucket, code: str, status: str) -> None:
    keys = faulty.fill(30)
    faulty.server.answer(code, status=status, times=10_000, match=bulk_delete)

    assert faulty.store.delete(keys[:20]) == {}
    assert faulty.store.delete(keys[20:]) == {}

    assert faulty.left() == []
    assert faulty.server.requests.count("POST") == 1
    assert faulty.server.requests.count("DELETE") == 30


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_refused_credentials_are_reported_without_the_secret(faulty: FaultyBucket, code: str) -> None:
    faulty.fill(1)
    faulty.server.answer(code, status="403 Forbidden", times=100)

    with pytest.raises(RefusedError, match=code) as caught:
        faulty.store.delete(["a"])

    assert "renew" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(faulty.store.settings)
    assert faulty.store.calls.requests == 1


def test_credentials_that_were_renewed_in_their_file_are_used(faulty: FaultyBucket) -> None:
    keys = faulty.fill(2)

    def signed_with_old_key(environ: dict[str, Any]) -> bool:
        return "Credential=first/" in environ.get("HTTP_AUTHORIZATION", "")

    assert faulty.store.existing(keys) == set(keys)
    faulty.server.answer("ExpiredToken", status="400 Bad Request", times=100, match=signed_with_old_key)
    write_credentials(faulty.credentials, "second")
    os.utime(faulty.credentials, (1, 1))

    assert faulty.store.delete(keys) == {}
    assert faulty.left() == []


@pytest.mark.parametrize("text", [None, "", "[other]\naws_access_key_id = a\n"], ids=["missing", "empty", "no profile"])
def test_a_credentials_file_without_credentials_is_refused(faulty: FaultyBucket, text: str | None) -> None:
    faulty.credentials.unlink()
    if text is not None:
        faulty.credentials.write_text(text)

    with pytest.raises(RefusedError, match=r"tiered_storage\.credentials_file"):
        faulty.store.read_many(["a"])


def test_an_object_without_permission_is_unreadable_and_not_absent(faulty: FaultyBucket) -> None:
    keys = faulty.fill(2)
    faulty.server.answer("AccessDenied", status="403 Forbidden", times=10_000, match=reads)

    seen = faulty.store.read_many(keys)

    assert [isinstance(answer, Unreadable) and "s3:ListBucket" in answer.detail for answer in seen] == [True] * 2


def test_an_archived_index_is_read_by_its_head(faulty: FaultyBucket) -> None:
    (key,) = faulty.fill(1)
    faulty.server.answer(
        "InvalidObjectState", status="403 Forbidden", match=lambda environ: environ["REQUEST_METHOD"] == "GET"
    )

    (seen,) = faulty.store.read_many([key])

    assert isinstance(seen, StoredObject)
    assert (seen.content, seen.size_bytes, seen.user_metadata) == (None, 1, {"role": "data"})


def test_an_object_too_large_for_an_index_is_unreadable(faulty: FaultyBucket) -> None:
    faulty.server.fill(faulty.bucket, {"large": b"x" * (MAX_CONTENT_BYTES + 1), "largest": b"x" * MAX_CONTENT_BYTES})

    larger, largest = faulty.store.read_many(["large", "largest"])

    assert isinstance(larger, Unreadable)
    assert isinstance(largest, StoredObject)


def test_a_thousand_keys_are_one_request(faulty: FaultyBucket) -> None:
    keys = faulty.fill(2_001)

    assert faulty.patient().delete(keys) == {}

    assert faulty.server.requests.count("POST") == 3
    assert faulty.left() == []


def test_the_absence_of_many_keys_needs_few_requests(faulty: FaultyBucket) -> None:
    keys = faulty.fill(2_400)
    faulty.store.delete(keys[1::2])
    faulty.server.requests.clear()

    assert faulty.patient().existing(keys) == set(keys[0::2])

    assert len(faulty.server.requests) <= 8


def test_distant_keys_are_checked_singly(faulty: FaultyBucket) -> None:
    keys = faulty.fill(9_000)
    distant = keys[::900]
    faulty.server.requests.clear()

    assert faulty.store.existing([*distant, "absent"]) == set(distant)

    assert faulty.server.requests.count("HEAD") >= len(distant)


def test_a_store_that_ignores_the_start_of_a_listing_gets_head_requests(faulty: FaultyBucket) -> None:
    keys = faulty.fill(1_200)
    checked = keys[-40:]

    def drop_start(environ: dict[str, Any]) -> bool:
        parts = environ["QUERY_STRING"].split("&")
        environ["QUERY_STRING"] = "&".join(part for part in parts if not part.startswith("start-after"))
        return False

    faulty.store.delete(checked[::2])
    faulty.server.answer("never", match=drop_start)

    assert faulty.patient().existing(checked) == set(checked[1::2])


def test_listings_have_many_pages(faulty: FaultyBucket) -> None:
    keys = faulty.fill(2_500)

    assert [key for key, _, _ in faulty.store.list_keys()] == keys


def test_a_store_without_listings_of_uploads_has_no_uploads(faulty: FaultyBucket) -> None:
    faulty.server.answer("NotImplemented", status="501 Not Implemented", match=reads)

    assert faulty.store.unfinished_uploads(["a"]) == []
