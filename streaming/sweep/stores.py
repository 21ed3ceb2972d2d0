"""Clients of the buckets that the operator allowed, one per process and bucket, made once and kept."""

import os
from threading import Lock

from streaming.adapters.pulsar.offload_policies import BrokerOffload
from streaming.adapters.s3.calls import S3Settings
from streaming.adapters.s3.objects import S3Objects
from streaming.clients import admin_settings
from streaming.config.policies import allowed_buckets
from streaming.config.settings import Settings
from streaming.in_use.loader import InUseLoader
from streaming.sweep.buckets import OffloadBuckets
from udfs.offload_target import Bucket

_made: dict[tuple[int, object], S3Objects | BrokerOffload] = {}
_lock = Lock()


def objects_for(settings: Settings, bucket: Bucket) -> S3Objects:
    """Return this process's client of an allowed bucket; a forked child makes its own. Raises ValueError for others."""
    if bucket not in allowed_buckets(settings):
        raise ValueError(f"bucket {bucket.name} is not in tiered_storage.allowed")
    credentials_file = settings.tiered_storage.credentials_file
    # requests for a bucket that is away come back after reconsume_later_seconds: by then it may be asked again
    rest_seconds = settings.two_phase.reconsume_later_seconds / 2
    wanted = S3Settings(bucket.endpoint, bucket.name, bucket.region, credentials_file, rest_seconds=rest_seconds)
    with _lock:
        made = _made.get((os.getpid(), wanted))
        if not isinstance(made, S3Objects):
            made = S3Objects(wanted)
            _made[os.getpid(), wanted] = made
        return made


def configuration_for(settings: Settings) -> BrokerOffload:
    """Return this process's client that asks brokers what they offload with."""
    wanted = (admin_settings(settings), settings.tiered_storage.pulsar_cluster)
    with _lock:
        made = _made.get((os.getpid(), wanted))
        if not isinstance(made, BrokerOffload):
            made = BrokerOffload(*wanted)
            _made[os.getpid(), wanted] = made
        return made


def places_for(settings: Settings, loader: InUseLoader) -> OffloadBuckets:
    """Return what finds and opens buckets for an OffloadSweeper."""
    return OffloadBuckets(
        loader,
        configuration_for(settings),
        allowed_buckets(settings),
        lambda bucket: objects_for(settings, bucket),
        settings.pulsar.timeout_seconds,
    )
