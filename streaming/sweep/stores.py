"""Stores of tiered storage of one process, made once and kept, with nothing but what the operator allowed."""

import os
from threading import Lock

from streaming.adapters.pulsar.offload_policies import BrokerOffload
from streaming.adapters.s3.calls import S3Settings
from streaming.adapters.s3.objects import S3Objects
from streaming.clients import admin_settings
from streaming.config.policies import allowed_buckets
from streaming.config.settings import Settings
from streaming.in_use.loader import InUseLoader
from streaming.sweep.buckets import OffloadPlaces
from udfs.offload_target import Bucket

_made: dict[tuple[int, object], S3Objects | BrokerOffload] = {}
_lock = Lock()


def objects_for(settings: Settings, bucket: Bucket) -> S3Objects:
    """The client of this process for the bucket; a forked child makes its own. The bucket must be an allowed one."""
    if bucket not in allowed_buckets(settings):
        raise ValueError(f"bucket {bucket.name} is not in tiered_storage.allowed")
    wanted = S3Settings(bucket.endpoint, bucket.name, bucket.region, settings.tiered_storage.credentials_file)
    with _lock:
        made = _made.get((os.getpid(), wanted))
        if not isinstance(made, S3Objects):
            made = S3Objects(wanted)
            _made[os.getpid(), wanted] = made
        return made


def configuration_for(settings: Settings) -> BrokerOffload:
    """The client of this process that asks brokers what they offload with."""
    wanted = (admin_settings(settings), settings.tiered_storage.pulsar_cluster)
    with _lock:
        made = _made.get((os.getpid(), wanted))
        if not isinstance(made, BrokerOffload):
            made = BrokerOffload(*wanted)
            _made[os.getpid(), wanted] = made
        return made


def places_for(settings: Settings, loader: InUseLoader) -> OffloadPlaces:
    """What an OffloadSweeper needs of the outside."""
    return OffloadPlaces(
        loader, configuration_for(settings), allowed_buckets(settings), lambda bucket: objects_for(settings, bucket)
    )
