"""The sandbox's S3 server answers brokers' requests."""

from pathlib import Path

from werkzeug.test import Client

from streaming.sandbox.parts.s3_server import Keeper, s3_app


def test_requests_with_any_signature_are_answered(tmp_path: Path) -> None:
    # jclouds signs as AWS did first (SigV2): base64, now and then with as many slashes as a SigV4 credential
    client = Client(Keeper(s3_app(), tmp_path / "s3.state"))
    signed = {"Authorization": "AWS sandbox:c2lnb/zbr/KtHzp/a1b2/c3Q="}

    assert client.put("/bucket-of-slashes", headers=signed).status_code == 200
    assert client.put("/bucket-of-slashes/key", data=b"content", headers=signed).status_code == 200
    assert client.get("/bucket-of-slashes/key", headers=signed).data == b"content"
