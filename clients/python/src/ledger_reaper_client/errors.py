"""Errors, grouped by what the caller does about them.

ClientError
├── ConfigurationError     the client's settings can't work: fix them
├── InvalidRequestError    a ValueError: the service would refuse the request or mark, so it is not sent
├── UnavailableError       a service did not answer, so the outcome is unknown: repeat the call, which is harmless
│   └── NoReceiptError     the request is durable, and its final receipt did not come in time
├── RefusedError           Pulsar refused, or a request could be lost on this topic: the text names the remedy
│   └── ForbiddenError     the role does not have the right
└── ReceiptsOffError       the service publishes no receipts for this topic, so nothing can wait for them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledger_reaper_client.receipts import Receipt


class ClientError(Exception):
    """Any error that this package raises on purpose."""


class ConfigurationError(ClientError):
    """The settings can't work; the text names the setting and what to do."""


class InvalidRequestError(ClientError, ValueError):
    """The service would refuse this request or mark, so it was not sent."""


class UnavailableError(ClientError):
    """A service did not answer; what was requested may or may not have happened."""


class NoReceiptError(UnavailableError):
    """A durable request has no final receipt yet."""

    def __init__(self, text: str, message_id: str, newest: Receipt | None) -> None:
        super().__init__(text)
        self.message_id = message_id
        self.newest = newest  # None: the request has no receipt at all


class RefusedError(ClientError):
    """Pulsar refused, or the topic could lose a request."""


class ForbiddenError(RefusedError):
    """The role does not have the right to this call."""


class ReceiptsOffError(ClientError):
    """There is no receipt topic for these requests."""


def no_access(error: Exception, what: str, action: str) -> ClientError:
    """Return the error for a producer or reader that the library could not open.

    Args:
        error: the library's.
        what: what could not be done, with the topic.
        action: what the role needs the right to do, such as "consume it".
    """
    import pulsar

    if isinstance(error, (pulsar.AuthorizationError, pulsar.AuthenticationError)):
        return ForbiddenError(f"{what} ({error}): give this role the right to {action}, or renew its credentials")
    return UnavailableError(f"{what} ({error}): check that the brokers run, and service_url")
