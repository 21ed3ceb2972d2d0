"""Packages that are not part of every installation, because only some configurations need them."""

import importlib.util

NEEDS_KERBEROS = (
    'zookeeper.sasl_mechanism "GSSAPI" needs the package kerberos: install ledger-reaper[kerberos]. pip compiles it, '
    "which needs a C compiler and libkrb5's headers (Debian: gcc and libkrb5-dev); hosts that only run it need "
    "libgssapi-krb5-2"
)


def has_package(name: str) -> bool:
    """Whether a package is installed; it is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a package above it
        return False
