"""deltalake's options for an object store: endpoint, region, credentials, and that no commit is overwritten."""

import os
from collections.abc import MutableMapping
from urllib.parse import parse_qs

_OVERWRITE_NOTHING = {"conditional_put": "etag"}  # deltalake puts each commit with If-None-Match
# With an endpoint deltalake would take credentials from variables only; this makes it search as AWS's own tools do.
_STANDARD_CHAIN = {"AWS_FORCE_CREDENTIAL_LOAD": "true"}


def set_region(location: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the region for deltalake's search for credentials; without it deltalake asks a service of AWS's machines."""
    options = options_of(location)
    if options is not None and "AWS_DEFAULT_REGION" not in environment:
        environment.setdefault("AWS_REGION", options["AWS_REGION"])


def options_of(location: str) -> dict[str, str] | None:
    """Return the options for a location in the form of streaming.config.stores; None on a disk. They hold no secret."""
    if not location.startswith("s3://"):
        return None
    query = {key: values[0] for key, values in parse_qs(location.partition("?")[2]).items()}
    scheme = query.get("scheme", "https")
    options = {"AWS_REGION": query.get("region", "us-east-1"), "AWS_ALLOW_HTTP": str(scheme == "http").lower()}
    if "endpoint_override" in query:
        options["AWS_ENDPOINT_URL"] = f"{scheme}://{query['endpoint_override']}"
    return {**options, **_OVERWRITE_NOTHING, **_STANDARD_CHAIN}
