"""An empty transaction, committed on one topic: all that is ever done with it is to let a broker trim aborted ids.

Pulsar's Python client has no transactions, so this speaks the protocol itself. Any coordinator will do; we take the
first. A transaction that is not ended, because we die in between, ends by its timeout and has no message.
"""

from streaming.adapters.pulsar.frames import Connection, owner_of
from streaming.config.sections import PulsarSettings
from streaming.errors import UnavailableError
from udfs.proto import pulsar_api_pb2 as api

NEW, NEW_DONE, ADD, ADD_DONE, END, END_DONE, JOIN, JOIN_DONE = 50, 51, 52, 53, 56, 57, 62, 63
_COORDINATOR = 0
_COORDINATORS_TOPIC = f"persistent://pulsar/system/transaction_coordinator_assign-partition-{_COORDINATOR}"
_COMMIT = 0
_TIMEOUT_MS = 60_000  # the field is called txn_ttl_seconds; brokers and Java's client take it for milliseconds


def commit_nothing(settings: PulsarSettings, topic: str) -> tuple[int, int]:
    """Begin a transaction on the topic and commit it, and return its id (most, least significant bits).

    Its broker adds a commit marker to the topic. Raises UnavailableError where the outcome is not known, RefusedError.
    """
    url, proxied_to = owner_of(settings, _COORDINATORS_TOPIC)
    with Connection(settings, url, proxied_to) as connection:
        number = connection.next_request()
        join = api.CommandTcClientConnectRequest(request_id=number, tc_id=_COORDINATOR)
        joined = connection.ask(api.BaseCommand(type=JOIN, tc_client_connect_request=join), JOIN_DONE)
        _checked(joined.tc_client_connect_response, "no coordinator takes us")
        number = connection.next_request()
        new = api.CommandNewTxn(request_id=number, txn_ttl_seconds=_TIMEOUT_MS, tc_id=_COORDINATOR)
        made = connection.ask(api.BaseCommand(type=NEW, new_txn=new), NEW_DONE).new_txn_response
        _checked(made, "no transaction is begun")
        most, least = made.txnid_most_bits, made.txnid_least_bits
        add = api.CommandAddPartitionToTxn(
            request_id=connection.next_request(), txnid_most_bits=most, txnid_least_bits=least, partitions=[topic]
        )
        added = connection.ask(api.BaseCommand(type=ADD, add_partition_to_txn=add), ADD_DONE)
        _checked(added.add_partition_to_txn_response, f"{topic} takes no part in a transaction")
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
