"""Finds the bucket of an offload request: in the request, its owner's list or its namespace's policies.

A bucket has to be on the operator's allow-list (tiered_storage.allowed); else nothing is sent to any store.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

from streaming.clients import objects_for, offload_configuration_for
from streaming.config.policies import allowed_buckets
from streaming.config.settings import Settings
from streaming.errors import RefusedError, UnavailableError
from streaming.in_use.loader import InUseLoader
from streaming.ports import ObjectStore, OffloadConfiguration
from udfs.formats.managed_ledger import ManagedLedgerInfo
from udfs.offload_drivers import Bucket, Target, allowed_bucket, supported_drivers, target_of
from udfs.paths import namespace_of, topic_of
from udfs.records import Outcome, PendingDelete, Reason, Verdict
from udfs.verdicts.judge import Policy
from udfs.verdicts.judge_offload import OffloadPolicy

_NAMESPACES_AT_ONCE = 8  # as many as PulsarHttp has connections


def offload_policy(configuration: OffloadConfiguration, patience: Policy, *, offload_grace_ms: int) -> OffloadPolicy:
    """Return the rules for objects. If brokers don't return the cluster's name, objects that name a cluster wait."""
    try:
        return OffloadPolicy(patience, offload_grace_ms, configuration.cluster_name())
    except (UnavailableError, RefusedError) as error:
        return OffloadPolicy(patience, offload_grace_ms, cluster="", cluster_unread=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadBuckets:
    """The buckets of a worker process."""

    loader: InUseLoader
    configuration: OffloadConfiguration
    allowed: tuple[Bucket, ...]
    open_store: Callable[[Bucket], ObjectStore]  # returns the client of an allowed bucket
    patience_seconds: float  # for the policies of all namespaces together

    def buckets(self, requests: Sequence[PendingDelete]) -> list[Bucket | Verdict]:
        """Find each request's bucket, in order; a Verdict if we may touch none.

        Raises UnavailableError when ZooKeeper does not answer.
        """
        named = [_named_by(request) for request in requests]
        # lists and policies are read only for requests that don't name a bucket themselves
        vague = [request for request, target in zip(requests, named, strict=True) if _is_vague(target)]
        lists = self.loader.lists({request.managed_ledger for request in vague}) if vague else {}
        from_lists = {_owner(request): _listed(request, lists) for request in vague}
        namespaces = {_namespace(request) for request in vague if _is_vague(from_lists[_owner(request)])}
        policies = self._policies(sorted(namespaces))
        return [
            self._judge(_first_named((target, from_lists.get(_owner(request)), policies.get(_namespace(request)))))
            for request, target in zip(requests, named, strict=True)
        ]

    def store(self, bucket: Bucket) -> ObjectStore:
        """Return the store of an allowed bucket."""
        return self.open_store(bucket)

    def _policies(self, namespaces: Sequence[str]) -> dict[str, Target | Verdict]:
        if not namespaces:
            return {}
        pool = ThreadPoolExecutor(_NAMESPACES_AT_ONCE, thread_name_prefix="policies")
        try:
            futures = {namespace: pool.submit(self._policy, namespace) for namespace in _by_turns(namespaces)}
            wait(futures.values(), self.patience_seconds)
            late = Verdict(
                Outcome.RETRY, Reason.BROKER_UNAVAILABLE, "the brokers did not return the offload policies in time"
            )
            return {namespace: future.result() if future.done() else late for namespace, future in futures.items()}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # a call that hangs must not make all requests wait

    def _policy(self, namespace: str) -> Target | Verdict:
        try:
            return target_of("", self.configuration.offload_policies(namespace))
        except RefusedError as error:  # it concerns this namespace: others must not wait for it
            return Verdict(Outcome.RETRY, Reason.OWNER_UNREADABLE, str(error))
        except UnavailableError as error:
            return Verdict(Outcome.RETRY, Reason.BROKER_UNAVAILABLE, str(error))

    def _judge(self, target: Target | Verdict) -> Bucket | Verdict:
        if isinstance(target, Verdict):
            return target
        if not target.is_supported:
            return _never(
                Reason.DRIVER_NOT_SUPPORTED,
                f"driver {target.driver} is not supported: {supported_drivers()} are",
            )
        if not target.bucket:
            # nothing names a bucket, and the operator allowed exactly one: no other can be meant
            if len(self.allowed) == 1:
                return self.allowed[0]
            return _never(
                Reason.BAD_OFFLOAD_CONTEXT,
                "neither the request nor its owner's list nor its namespace's offload policies name a bucket",
            )
        bucket = allowed_bucket(target, self.allowed)
        if bucket is None:
            where = f"bucket {target.bucket!a} at {target.endpoint or 'AWS'!a}"
            return _never(Reason.STORE_NOT_ALLOWED, f"{where} is not in tiered_storage.allowed")
        return bucket


def offload_buckets(settings: Settings, loader: InUseLoader) -> OffloadBuckets:
    """Return the buckets of this process."""
    return OffloadBuckets(
        loader=loader,
        configuration=offload_configuration_for(settings),
        allowed=allowed_buckets(settings),
        open_store=partial(objects_for, settings),
        patience_seconds=settings.pulsar.timeout_seconds,
    )


def _by_turns(namespaces: Iterable[str]) -> list[str]:
    """Order namespaces so that each tenant has one before any tenant has its second."""
    # many hanging namespaces of a tenant must not come before those of others
    of_tenant: Counter[str] = Counter()
    turns = dict[str, int]()
    for namespace in namespaces:
        tenant = namespace.partition("/")[0]
        turns[namespace] = of_tenant[tenant]
        of_tenant[tenant] += 1
    return sorted(turns, key=turns.__getitem__)


def _named_by(request: PendingDelete) -> Target:
    context = request.offload_context
    return target_of(context.driver_name, context.driver_properties) if context else Target("", "", "")


def _listed(request: PendingDelete, lists: Mapping[str, ManagedLedgerInfo]) -> Target:
    """Return the bucket that the owner's list names for the ledger; its other uploads most likely went there too."""
    info = lists.get(request.managed_ledger)
    for ledger in info.ledgers if info else ():
        if ledger.ledger_id == request.ledger_id and ledger.offload is not None:
            return target_of(ledger.offload.driver_name, ledger.offload.driver_properties)
    return Target("", "", "")


def _is_vague(target: Target) -> bool:
    return target.is_supported and not target.bucket


def _first_named(targets: Iterable[Target | Verdict | None]) -> Target | Verdict:
    """Return the first target that names a bucket or an unsupported driver, or the Verdict of unreadable policies."""
    present = [target for target in targets if target is not None]
    return next((target for target in present if isinstance(target, Verdict) or not _is_vague(target)), present[0])


def _owner(request: PendingDelete) -> tuple[str, int]:
    return request.managed_ledger, request.ledger_id


def _namespace(request: PendingDelete) -> str:
    return namespace_of(topic_of(request.managed_ledger))


def _never(reason: Reason, detail: str) -> Verdict:
    return Verdict(Outcome.DEAD_LETTER, reason, detail)
