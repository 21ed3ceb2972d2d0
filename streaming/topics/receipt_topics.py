"""Creates the topics to which the service publishes receipts for tenants."""

from streaming.config.settings import Settings
from streaming.errors import RefusedError
from streaming.ports import TopicAdmin


def ensure_receipt_topic(admin: TopicAdmin, settings: Settings, topic: str) -> None:
    """Create the topic, without partitions, and set how long brokers keep its messages, unless it is in use already.

    The topic belongs to its tenant, who may change its policies later. Raises UnavailableError, and RefusedError if the
    topic is partitioned, or its namespace is gone.
    """
    partitions = admin.partitions(topic)
    if partitions:
        raise RefusedError(f"{topic} has {partitions} partitions, and receipts need a topic without partitions")
    if partitions is None:
        admin.create_topic(topic)
    # the topic is empty if we created it, now or before a call that failed
    if all(entry < 0 for _, entry in admin.last_positions(topic).values()):
        # without a subscription, only retention keeps messages
        admin.set_retention(topic, minutes=settings.topics.retention_minutes, megabytes=-1)
