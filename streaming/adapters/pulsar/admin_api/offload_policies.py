"""Reads the offload configuration of brokers: the cluster name in their objects, and the policies of namespaces."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from streaming.adapters.pulsar.http import FailedAnswerError, PulsarAdminSettings, PulsarHttp
from streaming.errors import RefusedError
from udfs.paths import is_v1

_NOT_LOCAL = "global"


class BrokerOffload:
    """OffloadConfiguration from the admin API.

    Args:
        pulsar_cluster: the name, if the operator configured it.
    """

    def __init__(self, settings: PulsarAdminSettings, pulsar_cluster: str = "") -> None:
        self._http = PulsarHttp(settings)
        self._cluster = pulsar_cluster

    def cluster_name(self) -> str:
        """Return the operator's name, else that in the broker's configuration, else the only cluster's; "": unknown.

        A known name is cached. Raises UnavailableError.
        """
        if not self._cluster:
            self._cluster = self._configured_name() or self._only_cluster()
        return self._cluster

    def offload_policies(self, namespace: str) -> Mapping[str, str]:
        """Return the offload policies of `tenant/ns`; empty if it has none or does not exist.

        Raises UnavailableError, RefusedError.
        """
        if is_v1(namespace):  # these have no such policies
            return {}
        try:
            answer = self._http.get(f"v2/namespaces/{namespace}/offloadPolicies")
        except FailedAnswerError as error:
            if error.is_busy:
                raise
            # the broker answers, but fails for this namespace, whose policies may be damaged permanently
            raise RefusedError(str(error)) from error
        if answer.status == HTTPStatus.NOT_FOUND:
            return {}
        if not answer.ok:
            raise RefusedError(f"Pulsar did not return the offload policies of {namespace}: {answer.reason}")
        policies: Any = answer.body or {}
        return {str(key): str(value) for key, value in policies.items() if isinstance(value, str)}

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _configured_name(self) -> str:
        """Return the name in the broker's configuration; "" without the permissions of a superuser."""
        answer = self._http.get("v2/brokers/configuration/runtime")
        body: Any = answer.body if answer.ok else None
        return str(body.get("clusterName") or "") if isinstance(body, dict) else ""

    def _only_cluster(self) -> str:
        answer = self._http.get("v2/clusters")
        names = answer.body if answer.ok and isinstance(answer.body, list) else []
        local = [str(name) for name in names if name != _NOT_LOCAL]
        return local[0] if len(local) == 1 else ""
