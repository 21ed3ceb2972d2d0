"""State on S3 stays whole only where the store refuses to overwrite: of two writers of one commit, one must lose."""

from streaming.adapters.s3.calls import S3Settings
from streaming.adapters.s3.overwriting import refuses_to_overwrite
from streaming.config.settings import Settings
from streaming.config.stores import endpoint_of, is_on_s3
from streaming.errors import ConfigError, RefusedError

_SECONDS = 10


def require_no_overwriting(settings: Settings) -> str:
    """Try out whether the store of state.dir refuses to overwrite, and leave nothing there; the answer in words.

    Raises ConfigError where the store does overwrite, or does not let us write; UnavailableError.
    """
    location = settings.state.dir
    if not is_on_s3(location):
        return "state.dir is on no object store"
    bucket, _, folder = location.partition("://")[2].strip("/").partition("/")
    store = S3Settings(
        settings.s3.endpoint, bucket, settings.s3.region, timeout_seconds=_SECONDS, patience_seconds=_SECONDS
    )
    try:
        refuses = refuses_to_overwrite(store, folder)
    except RefusedError as error:
        raise ConfigError(f"state.dir {location} can't be written: {error}") from error
    if not refuses:
        raise ConfigError(
            f"the store of state.dir {location}, {endpoint_of(settings.s3)}, overwrites an object although we ask it "
            "not to (If-None-Match: *). Two runs could both commit receipts there, and one would lose its own. Name a "
            "store that refuses, as AWS does, or a directory on a disk"
        )
    return f"{location} can be written, and refuses to overwrite when asked"
