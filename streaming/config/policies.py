"""Translates sections of the configuration into the parameters of the rules in udfs."""

from streaming.config.sections import LimitSettings
from streaming.config.settings import Settings
from udfs.blast_radius import Limits
from udfs.offload_drivers import Bucket
from udfs.requests.admission import Admission
from udfs.requests.retry import Delays
from udfs.verdicts.judge import Policy


def allowed_buckets(settings: Settings) -> tuple[Bucket, ...]:
    """Translate tiered_storage.allowed for udfs.offload_drivers."""
    return tuple(
        Bucket(
            endpoint=entry.endpoint,
            name=entry.bucket,
            region=entry.region,
            exclusive=entry.exclusive,
            cluster_names_are_unique=bool(entry.cluster_names_are_unique),
        )
        for entry in settings.tiered_storage.allowed
    )


def policy_of(settings: Settings) -> Policy:
    """Translate [safety] and [two_phase] for udfs.verdicts.judge."""
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
    """Translate [limits] for udfs.blast_radius."""
    return Limits(
        per_batch=settings.max_deletes_per_batch,
        per_hour=settings.max_deletes_per_hour,
        per_hour_per_tenant=settings.max_deletes_per_hour_per_tenant,
        per_hour_per_owner=settings.max_deletes_per_hour_per_owner,
        share_per_hour=settings.max_share_per_hour,
        share_applies_above=settings.share_applies_above_ledgers,
    )


def admission_of(settings: Settings) -> Admission:
    """Translate [topics] and [safety] for udfs.requests.admission."""
    return Admission(
        request_topics=frozenset({*settings.topics.requests, settings.topics.watch}),
        trusted_tenants=frozenset(settings.topics.trusted_tenants),
        namespaces=frozenset(settings.safety.allowed_namespaces),
        components=frozenset(settings.safety.allowed_components),
        requests_pattern=settings.topics.pattern,
        lanes=settings.topics.lanes,
    )


def delays_of(settings: Settings) -> Delays:
    """Translate [two_phase] for udfs.requests.retry."""
    two_phase = settings.two_phase
    return Delays(
        base_ms=two_phase.reconsume_later_seconds * 1000,
        cap_ms=two_phase.reconsume_later_max_seconds * 1000,
        not_closed_ms=two_phase.not_closed_later_seconds * 1000,
    )
