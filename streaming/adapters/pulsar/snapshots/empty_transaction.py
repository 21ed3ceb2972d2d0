"""Commits an empty transaction on a topic, only to make the broker trim the ids of aborted transactions.

Pulsar's Python client has no transactions, so the protocol is implemented here, with the first coordinator.
"""

from streaming.adapters.pulsar.readers.frames import Connection, owner_of
from streaming.config.sections import PulsarSettings
from streaming.errors import UnavailableError
from udfs.proto import pulsar_api_pb2 as api

NEW, NEW_DONE, ADD, ADD_DONE, END, END_DONE, JOIN, JOIN_DONE = 50, 51, 52, 53, 56, 57, 62, 63
_COORDINATOR = 0
_COORDINATORS_TOPIC = f"persistent://pulsar/system/transaction_coordinator_assign-partition-{_COORDINATOR}"
_COMMIT = 0
_TIMEOUT_MS = 60_000  # the field is called txn_ttl_seconds; brokers and Java's client treat it as milliseconds


def commit_nothing(settings: PulsarSettings, topic: str) -> tuple[int, int]:
    """Commit an empty transaction on the topic, and return its id (most, least significant bits).

    The broker adds a commit marker to the topic. Raises RefusedError, and UnavailableError if the outcome is unknown.
    """
    url, proxied_to = owner_of(settings, _COORDINATORS_TOPIC)
    with Connection(settings, url, proxied_to) as connection:
        number = connection.next_request()
        join = api.CommandTcClientConnectRequest(request_id=number, tc_id=_COORDINATOR)
        joined = connection.ask(api.BaseCommand(type=JOIN, tc_client_connect_request=join), JOIN_DONE)
        _checked(joined.tc_client_connect_response, "no coordinator accepts this client")
        number = connection.next_request()
        new = api.CommandNewTxn(request_id=number, txn_ttl_seconds=_TIMEOUT_MS, tc_id=_COORDINATOR)
        started = connection.ask(api.BaseCommand(type=NEW, new_txn=new), NEW_DONE).new_txn_response
        _checked(started, "no transaction can be started")
        most, least = started.txnid_most_bits, started.txnid_least_bits
        # if this process dies before the end, the transaction contains no message and ends by its timeout
        add = api.CommandAddPartitionToTxn(
            request_id=connection.next_request(), txnid_most_bits=most, txnid_least_bits=least, partitions=[topic]
        )
        added = connection.ask(api.BaseCommand(type=ADD, add_partition_to_txn=add), ADD_DONE)
        _checked(added.add_partition_to_txn_response, f"{topic} can't be added to a transaction")
        end = api.CommandEndTxn(
            request_id=connection.next_request(), txnid_most_bits=most, txnid_least_bits=least, txn_action=_COMMIT
        )
        ended = connection.ask(api.BaseCommand(type=END, end_txn=end), END_DONE)
        _checked(ended.end_txn_response, f"the transaction on {topic} is not committed")
        return most, least


def _checked(
    answer: api.CommandTcClientConnectResponse | api.CommandNewTxnResponse | api.CommandTxnResponse, what: str
) -> None:
    if answer.HasField("error"):
        raise UnavailableError(f"{what}: {answer.message} (error {answer.error} of Pulsar's protocol)")
