"""What deltalake is told of an object store: the endpoint and region of a location, and to overwrite no commit."""

import os
from collections.abc import MutableMapping
from urllib.parse import parse_qs

_OVERWRITE_NOTHING = {"conditional_put": "etag"}  # each commit is put with If-None-Match
# deltalake looks for credentials where AWS's own tools do; with an endpoint it would take them from variables only
_STANDARD_CHAIN = {"AWS_FORCE_CREDENTIAL_LOAD": "true"}


def told(location: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Have deltalake's search for credentials know the region: else it asks a service that only AWS's machines have."""
    options = options_of(location)
    if options is not None and "AWS_DEFAULT_REGION" not in environment:
        environment.setdefault("AWS_REGION", options["AWS_REGION"])


def options_of(location: str) -> dict[str, str] | None:
    """Options for a location as streaming.config.stores has it; None for one on a disk. They hold no secret."""
    if not location.startswith("s3://"):
        return None
    said = {key: values[0] for key, values in parse_qs(location.partition("?")[2]).items()}
    scheme = said.get("scheme", "https")
    options = {"AWS_REGION": said.get("region", "us-east-1"), "AWS_ALLOW_HTTP": str(scheme == "http").lower()}
    if "endpoint_override" in said:
        options["AWS_ENDPOINT_URL"] = f"{scheme}://{said['endpoint_override']}"
    return {**options, **_OVERWRITE_NOTHING, **_STANDARD_CHAIN}
