"""The S3 adapter with a server that throttles, lies, breaks connections, has fewer features, and recovers."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streaming.adapters.s3.calls import S3Settings
from streaming.adapters.s3.objects import MAX_CONTENT_BYTES, S3Objects
from streaming.errors import RefusedError, UnavailableError
from streaming.ports import Unreadable
from tests.contract.s3_server import BREAK, HOST, S3Server, bulk_delete, reads, s3_running
from udfs.records import StoredObject

pytestmark = pytest.mark.slow  # for a server that answers late, or not at all

SECRET = "do-not-tell-anyone"


@dataclass
class Place:
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
def place(s3_server: S3Server, tmp_path: Path) -> Iterator[Place]:
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
    yield Place(s3_server, bucket, store, credentials)
    store.close()
    s3_server.heal()


def write_credentials(path: Path, key: str) -> None:
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n")


def test_a_few_refusals_for_load_are_retried(place: Place) -> None:
    keys = place.fill(10)
    place.server.answer("SlowDown", times=3)

    assert place.store.delete(keys) == {}

    assert place.left() == []
    assert place.store.calls.retries == 3
    assert place.store.writes.rate is not None


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param("SlowDown", "503 Slow Down", id="SlowDown"),
        pytest.param("InternalError", "500 Internal Server Error", id="InternalError"),
        pytest.param("TooManyRequests", "429 Too Many Requests", id="TooManyRequests"),
    ],
)
def test_refusals_longer_than_the_patience_are_an_unknown_outcome(place: Place, code: str, status: str) -> None:
    keys = place.fill(10)
    place.server.answer(code, status=status, times=10_000)

    with pytest.raises(UnavailableError, match=code):
        place.impatient().delete(keys)

    assert place.left() == keys
    place.server.heal()
    assert place.store.delete(keys) == {}


def test_a_bucket_that_did_not_answer_gets_no_requests_for_a_while(place: Place) -> None:
    """Otherwise each chunk with a request for it would wait for the whole patience and delay other buckets."""
    place.fill(1)
    store = S3Objects(replace(place.store.settings, patience_seconds=1, rest_seconds=3600))
    place.server.stop()
    with pytest.raises(UnavailableError):
        store.head_many(["00000000-object"])
    asked = store.calls.requests
    place.server.start()

    for _ in range(3):
        with pytest.raises(UnavailableError, match="the next attempt is in"):
            store.head_many(["00000000-object"])

    assert store.calls.requests == asked
    store.close()


def _given_up(place: Place, code: str, status: str = "503 Slow Down") -> S3Objects:
    """Return a store of one object that answered with this code for too long, and that rests a millisecond."""
    place.fill(1)
    store = S3Objects(replace(place.store.settings, patience_seconds=1, rest_seconds=0.001))
    place.server.answer(code, status=status, times=10_000)
    with pytest.raises(UnavailableError):
        store.head_many(["00000000-object"])
    return store


def test_after_the_rest_a_bucket_that_answers_gets_all_requests(place: Place) -> None:
    store = _given_up(place, "InternalError", status="500 Internal Server Error")
    asked = store.calls.requests

    time.sleep(0.01)
    with pytest.raises(UnavailableError):
        store.head_many(["00000000-object"])
    assert store.calls.requests == asked + 1

    place.server.heal()
    time.sleep(0.01)
    assert isinstance(store.head_many(["00000000-object"])[0], StoredObject)
    place.server.answer("InternalError", status="500 Internal Server Error", times=1)
    assert isinstance(store.head_many(["00000000-object"])[0], StoredObject)
    store.close()


def test_after_the_rest_one_refusal_for_load_is_no_outage(place: Place) -> None:
    store = _given_up(place, "SlowDown")
    place.server.heal()
    time.sleep(0.01)

    place.server.answer("SlowDown", times=1)
    assert isinstance(store.head_many(["00000000-object"])[0], StoredObject)
    store.close()


def test_after_the_rest_repeated_refusals_for_load_start_another_rest(place: Place) -> None:
    store = _given_up(place, "SlowDown")
    asked = store.calls.requests
    time.sleep(0.01)

    with pytest.raises(UnavailableError, match="does not answer"):
        store.head_many(["00000000-object"])
    assert store.calls.requests == asked + 3
    store.close()


def test_under_a_limit_the_rate_settles_and_all_keys_are_deleted(place: Place) -> None:
    keys = place.fill(6_000)
    place.server.keys_per_s = 1_000

    assert place.store.delete(keys) == {}

    assert place.left() == []
    assert place.store.writes.rate is not None
    assert place.server.throttled < 30


def test_keys_with_transient_errors_are_retried_and_refused_keys_are_named(place: Place) -> None:
    keys = place.fill(20)
    place.server.refused = {keys[3]: "AccessDenied", keys[5]: "SlowDown", keys[6]: "InternalError"}
    tries = place.store.calls

    def heal_later(environ: dict[str, Any]) -> bool:
        if bulk_delete(environ) and tries.requests > 2:
            place.server.refused.pop(keys[5], None)
            place.server.refused.pop(keys[6], None)
        return False

    place.server.answer("never", match=heal_later)

    errors = place.store.delete(keys)

    assert list(errors) == [keys[3]]
    assert "AccessDenied" in errors[keys[3]]
    assert place.left() == [keys[3]]


def test_keys_that_stay_transient_are_an_unknown_outcome(place: Place) -> None:
    keys = place.fill(3)
    place.server.refused = {keys[1]: "SlowDown"}

    with pytest.raises(UnavailableError, match="1 keys"):
        place.store.delete(keys)

    assert place.left() == [keys[1]]


def test_a_late_answer_is_waited_for(place: Place) -> None:
    keys = place.fill(3)
    place.server.delay_s = 0.3

    assert place.store.delete(keys) == {}
    assert place.store.existing(keys) == set()


def test_a_missing_answer_is_an_unknown_outcome(place: Place) -> None:
    keys = place.fill(3)
    place.server.delay_s = 2.5

    with pytest.raises(UnavailableError, match="does not answer"):
        place.impatient().existing(keys)


def test_a_broken_connection_is_retried(place: Place) -> None:
    keys = place.fill(10)
    place.server.answer("", status=BREAK, times=2)

    assert place.store.delete(keys) == {}
    assert place.left() == []


def test_a_batch_continues_after_a_restart_of_the_server(place: Place) -> None:
    keys = place.fill(5_000)
    place.server.stop_after = 2

    with pytest.raises(UnavailableError):
        place.impatient().delete(keys)
    left = place.left()
    assert 0 < len(left) < len(keys)
    place.server.heal()
    place.server.start()

    assert place.store.delete(keys) == {}
    assert place.left() == []


def test_an_unreachable_server_is_an_unknown_outcome(place: Place) -> None:
    nobody = S3Objects(
        S3Settings(
            endpoint=f"http://{HOST}:1", bucket="nobody", credentials_file=str(place.credentials), patience_seconds=0.5
        )
    )

    with pytest.raises(UnavailableError, match="does not answer"):
        nobody.read_many(["a"])


def test_deletes_that_report_success_and_do_nothing_are_detected_by_reads(place: Place) -> None:
    keys = place.fill(100)
    place.server.lies = True

    assert place.store.delete(keys) == {}
    assert place.store.existing(keys) == set(keys)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param("NotImplemented", "501 Not Implemented", id="as Google answers"),
        pytest.param("NotImplemented", "400 Bad Request", id="as Google answered before"),
        pytest.param("MethodNotAllowed", "405 Method Not Allowed", id="as others answer"),
    ],
)
def test_a_store_without_bulk_deletes_gets_single_deletes(place: Place, code: str, status: str) -> None:
    keys = place.fill(30)
    place.server.answer(code, status=status, times=10_000, match=bulk_delete)

    assert place.store.delete(keys[:20]) == {}
    assert place.store.delete(keys[20:]) == {}

    assert place.left() == []
    assert place.server.requests.count("POST") == 1
    assert place.server.requests.count("DELETE") == 30


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_refused_credentials_are_reported_without_the_secret(place: Place, code: str) -> None:
    place.fill(1)
    place.server.answer(code, status="403 Forbidden", times=100)

    with pytest.raises(RefusedError, match=code) as caught:
        place.store.delete(["a"])

    assert "renew" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(place.store.settings)
    assert place.store.calls.requests == 1


def test_credentials_that_were_renewed_in_their_file_are_used(place: Place) -> None:
    keys = place.fill(2)

    def signed_with_old_key(environ: dict[str, Any]) -> bool:
        return "Credential=first/" in environ.get("HTTP_AUTHORIZATION", "")

    assert place.store.existing(keys) == set(keys)
    place.server.answer("ExpiredToken", status="400 Bad Request", times=100, match=signed_with_old_key)
    write_credentials(place.credentials, "second")
    os.utime(place.credentials, (1, 1))

    assert place.store.delete(keys) == {}
    assert place.left() == []


@pytest.mark.parametrize("text", [None, "", "[other]\naws_access_key_id = a\n"], ids=["missing", "empty", "no profile"])
def test_a_credentials_file_without_credentials_is_refused(place: Place, text: str | None) -> None:
    place.credentials.unlink()
    if text is not None:
        place.credentials.write_text(text)

    with pytest.raises(RefusedError, match=r"tiered_storage\.credentials_file"):
        place.store.read_many(["a"])


def test_an_object_without_permission_is_unreadable_and_not_absent(place: Place) -> None:
    keys = place.fill(2)
    place.server.answer("AccessDenied", status="403 Forbidden", times=10_000, match=reads)

    seen = place.store.read_many(keys)

    assert [isinstance(each, Unreadable) and "s3:ListBucket" in each.detail for each in seen] == [True] * 2


def test_an_archived_index_is_read_by_its_head(place: Place) -> None:
    (key,) = place.fill(1)
    place.server.answer(
        "InvalidObjectState", status="403 Forbidden", match=lambda environ: environ["REQUEST_METHOD"] == "GET"
    )

    (seen,) = place.store.read_many([key])

    assert isinstance(seen, StoredObject)
    assert (seen.content, seen.size_bytes, seen.user_metadata) == (None, 1, {"role": "data"})


def test_an_object_too_large_for_an_index_is_unreadable(place: Place) -> None:
    place.server.fill(place.bucket, {"large": b"x" * (MAX_CONTENT_BYTES + 1), "largest": b"x" * MAX_CONTENT_BYTES})

    larger, largest = place.store.read_many(["large", "largest"])

    assert isinstance(larger, Unreadable)
    assert isinstance(largest, StoredObject)


def test_a_thousand_keys_are_one_request(place: Place) -> None:
    keys = place.fill(2_001)

    assert place.patient().delete(keys) == {}

    assert place.server.requests.count("POST") == 3
    assert place.left() == []


def test_the_absence_of_many_keys_needs_few_requests(place: Place) -> None:
    keys = place.fill(4_000)
    place.store.delete(keys[1::2])
    place.server.requests.clear()

    assert place.patient().existing(keys) == set(keys[0::2])

    assert len(place.server.requests) <= 8


def test_distant_keys_are_checked_singly(place: Place) -> None:
    keys = place.fill(9_000)
    asked = keys[::900]
    place.server.requests.clear()

    assert place.store.existing([*asked, "absent"]) == set(asked)

    assert place.server.requests.count("HEAD") >= len(asked)


def test_a_store_that_ignores_the_start_of_a_listing_is_asked_by_head(place: Place) -> None:
    keys = place.fill(1_200)
    asked = keys[-40:]

    def drop_start(environ: dict[str, Any]) -> bool:
        parts = environ["QUERY_STRING"].split("&")
        environ["QUERY_STRING"] = "&".join(part for part in parts if not part.startswith("start-after"))
        return False

    place.store.delete(asked[::2])
    place.server.answer("never", match=drop_start)

    assert place.store.existing(asked) == set(asked[1::2])


def test_listings_have_many_pages(place: Place) -> None:
    keys = place.fill(2_500)

    assert [key for key, _, _ in place.store.list_keys()] == keys


def test_a_store_without_listings_of_uploads_has_no_uploads(place: Place) -> None:
    place.server.answer("NotImplemented", status="501 Not Implemented", match=reads)

    assert place.store.unfinished_uploads(["a"]) == []
