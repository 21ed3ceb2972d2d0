"""Refuses a store for state.dir that overwrites objects: if two runs write the same commit, one of them must fail."""

from streaming.adapters.s3.calls import S3Settings
from streaming.adapters.s3.if_none_match import refuses_to_overwrite
from streaming.config.settings import Settings
from streaming.config.stores import endpoint_of, is_on_s3
from streaming.errors import ConfigError, RefusedError

_SECONDS = 10


def require_no_overwriting(settings: Settings) -> str:
    """Test whether the store of state.dir refuses to overwrite an object, and delete the test object.

    Returns:
        A message that describes the result.

    Raises ConfigError if the store overwrites, or refuses our writes; UnavailableError.
    """
    location = settings.state.dir
    if not is_on_s3(location):
        return "state.dir is not on an object store"
    bucket, _, folder = location.partition("://")[2].strip("/").partition("/")
    store = S3Settings(
        endpoint=settings.s3.endpoint,
        bucket=bucket,
        region=settings.s3.region,
        timeout_seconds=_SECONDS,
        patience_seconds=_SECONDS,
    )
    try:
        refuses = refuses_to_overwrite(store, folder)
    except RefusedError as error:
        raise ConfigError(f"state.dir {location} can't be written: {error}") from error
    if not refuses:
        raise ConfigError(
            f"the store of state.dir {location}, {endpoint_of(settings.s3)}, overwrites an object in spite of "
            "If-None-Match: *. Two runs could both commit receipts there, and one run's receipts would be lost. Name "
            "a store that refuses, as AWS does, or a directory on a disk"
        )
    return f"{location} can be written, and refuses to overwrite when asked"
