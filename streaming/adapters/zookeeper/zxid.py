"""The newest transaction that ZooKeeper has applied: every answer's header carries it, and kazoo keeps it."""

from kazoo.protocol.serialization import Exists, Sync

from streaming.adapters.zookeeper.session import AnsweredError, ZooKeeperSession
from streaming.adapters.zookeeper.settings import ZooKeeperSettings
from streaming.errors import UnavailableError


def newest_zxid(settings: ZooKeeperSettings) -> int:
    """Return a transaction id that every later read (after sync) sees at least. Raises UnavailableError."""
    session = ZooKeeperSession(settings)
    try:
        session.send(Sync(session.absolute("/")))  # the server catches up with its leader before it answers the next
        pending = session.send(Exists(session.absolute("/"), False))
        session.wait(pending)
        return int(pending.client.last_zxid)
    except AnsweredError as error:
        raise UnavailableError(f"ZooKeeper would not tell its newest transaction: error {error.code}") from error
    finally:
        session.close()
