"""Locations of state and checkpoints on S3, in the forms for pyarrow and deltalake, Hadoop and boto3."""

from urllib.parse import urlencode, urlsplit

from streaming.config.sections import StoreSettings


def is_on_s3(location: str) -> bool:
    """Whether a location is on S3; Hadoop's scheme is s3a://."""
    return location.startswith(("s3://", "s3a://"))


def endpoint_of(store: StoreSettings) -> str:
    """Return the URL of the store; if none is configured, AWS's for the region."""
    return store.endpoint or f"https://s3.{store.region}.amazonaws.com"


def located(store: StoreSettings, location: str) -> str:
    """Return a location in the form for streaming.state: on S3, a URI with endpoint and region, and never a key."""
    if not is_on_s3(location):
        return location
    scheme, host, *_ = urlsplit(endpoint_of(store))
    options = {"scheme": scheme, "endpoint_override": host, "region": store.region}
    return f"s3://{location.partition('://')[2].rstrip('/')}?{urlencode(options)}"
