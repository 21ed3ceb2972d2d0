"""A client of Ledger Reaper: PIP-186's LedgerDeletionService and PIP-129's marks, for programs that drop ledgers."""

from typing import TYPE_CHECKING, Any

from ledger_reaper_client.client import LedgerDeletionService
from ledger_reaper_client.credentials import Basic, ClientCertificate, OAuth2, Token, TokenFile
from ledger_reaper_client.errors import (
    ClientError,
    ConfigurationError,
    ForbiddenError,
    InvalidRequestError,
    NoReceiptError,
    ReceiptsOffError,
    RefusedError,
    UnavailableError,
)
from ledger_reaper_client.marks import DeletableLedgers, Marked, Removal
from ledger_reaper_client.receipts import Outcome, Receipt
from ledger_reaper_client.requests import LedgerComponent, LedgerType, OffloadContext
from ledger_reaper_client.settings import Settings, Tls

if TYPE_CHECKING:
    from ledger_reaper_client.aio import AsyncLedgerDeletionService

__all__ = [
    "AsyncLedgerDeletionService",
    "Basic",
    "ClientCertificate",
    "ClientError",
    "ConfigurationError",
    "DeletableLedgers",
    "ForbiddenError",
    "InvalidRequestError",
    "LedgerComponent",
    "LedgerDeletionService",
    "LedgerType",
    "Marked",
    "NoReceiptError",
    "OAuth2",
    "OffloadContext",
    "Outcome",
    "Receipt",
    "ReceiptsOffError",
    "RefusedError",
    "Removal",
    "Settings",
    "Tls",
    "Token",
    "TokenFile",
    "UnavailableError",
]


def __getattr__(name: str) -> Any:
    """Import the asyncio client at its first use, because asyncio takes as long to import as all the rest."""
    if name == "AsyncLedgerDeletionService":
        from ledger_reaper_client.aio import AsyncLedgerDeletionService

        return AsyncLedgerDeletionService
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
