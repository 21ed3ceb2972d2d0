"""Sections of the configuration, translated into what the rules of udfs take."""

from streaming.config.sections import LimitSettings
from streaming.config.settings import Settings
from udfs.admission import Admission
from udfs.blast_radius import Limits
from udfs.disposition import Delays
from udfs.judge import Policy
from udfs.offload_target import Bucket


def allowed_buckets(settings: Settings) -> tuple[Bucket, ...]:
    """tiered_storage.allowed, as udfs.offload_target takes it."""
    return tuple(
        Bucket(each.endpoint, each.bucket, each.region, each.exclusive, bool(each.cluster_names_are_unique))
        for each in settings.tiered_storage.allowed
    )


def policy_of(settings: Settings) -> Policy:
    """[safety] and [two_phase], as udfs.judge takes them."""
    safety = settings.safety
    return Policy(
        min_age_ms=safety.min_age_seconds * 1000,
        above_newest_quarantine_ms=safety.above_newest_quarantine_seconds * 1000,
        absence_interval_ms=settings.two_phase.reconsume_later_seconds * 1000,
        open_quiet_ms=safety.open_quiet_period * 1000,
        max_shrink=safety.max_shrink,
        shrink_applies_above=safety.shrink_applies_above_ledgers,
    )


def limits_of(settings: LimitSettings) -> Limits:
    """[limits], as udfs.blast_radius takes it."""
    return Limits(
        per_batch=settings.max_deletes_per_batch,
        per_hour=settings.max_deletes_per_hour,
        per_hour_per_tenant=settings.max_deletes_per_hour_per_tenant,
        per_hour_per_owner=settings.max_deletes_per_hour_per_owner,
        share_per_hour=settings.max_share_per_hour,
        share_applies_above=settings.share_applies_above_ledgers,
    )


def admission_of(settings: Settings) -> Admission:
    """[topics] and [safety], as udfs.admission takes them."""
    return Admission(
        request_topics=frozenset({*settings.topics.requests, settings.topics.watch}),
        trusted_tenants=frozenset(settings.topics.trusted_tenants),
        namespaces=frozenset(settings.safety.allowed_namespaces),
        components=frozenset(settings.safety.allowed_components),
        requests_pattern=settings.topics.pattern,
    )


def delays_of(settings: Settings) -> Delays:
    """[two_phase], as udfs.disposition takes it."""
    two_phase = settings.two_phase
    return Delays(
        base_ms=two_phase.reconsume_later_seconds * 1000,
        cap_ms=two_phase.reconsume_later_max_seconds * 1000,
        not_closed_ms=two_phase.not_closed_later_seconds * 1000,
    )
