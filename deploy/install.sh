#!/usr/bin/env bash
# Installs Ledger Reaper below a folder, for the image and the systemd unit. Java archives are also written to the
# user's cache folder; everything else is written below the folder.
#
#   deploy/install.sh /opt/ledger-reaper
#   SPARK=4.3 deploy/install.sh /opt/ledger-reaper     # with PySpark 4.3 (or 4.2) instead of 3.5 (docs/limits.md)
#
# It needs Python 3.11, with PySpark 4.3 also 3.12 or 3.13 (PYTHON names an interpreter other than python3.11), Java 17,
# and a package index. The folder then contains
#   wheel/   the program, built from this checkout
#   venv/    the program and its dependencies, at the versions of constraints.txt (and constraints-spark4.txt)
#   jars/    the Java archives, with SHA512SUMS; if LEDGER_REAPER_JARS names this folder, the program fetches none
#   bin/     start (the service, for any spark.master), healthy (a health check), entrypoint (of the image)
set -euo pipefail

source=$(cd "$(dirname "$0")/.." && pwd)
into=${1:?name the folder to install into, for example /opt/ledger-reaper}
python=${PYTHON:-python3.11}
case ${SPARK:-3.5} in
  3.5) extra=spark35 constraints=constraints.txt pythons="3.11" ;;
  4.3) extra=spark4 constraints=constraints-spark4.txt pythons="3.11 3.12 3.13" ;;
  4.2) extra=spark4 constraints=constraints-spark4.2.txt pythons="3.11" ;;
  *) echo "SPARK is 3.5, 4.2 or 4.3, not $SPARK" >&2; exit 1 ;;
esac

umask 022 # the service runs as another user than the installer
mkdir -p "$into/wheel" "$into/bin"
into=$(cd "$into" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$python" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] not in sys.argv[1].split())' "$pythons" \
  || { echo "missing: Python ${pythons// / or }" >&2; exit 1; }
"$python" -m venv "$into/venv"
pip() { "$into/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

# Setuptools writes into the source folder, so it builds a copy.
mkdir "$scratch/source"
cp -R "$source"/{pyproject.toml,README.md,LICENSE,conf,streaming,udfs} "$scratch/source"
pip wheel --no-deps --wheel-dir "$into/wheel" "$scratch/source"
wheel=("$into"/wheel/ledger_reaper-*.whl)
pip install --constraint "$source/$constraints" "${wheel[0]}[$extra,otlp]" # with the exporter of metrics.otlp_endpoint
"$into/venv/bin/python" -m pip check --quiet --disable-pip-version-check

"$into/venv/bin/ledger-reaper" jars --to "$into/jars" > "$scratch/jars"
cp "$source"/deploy/{start,healthy,entrypoint} "$into/bin"
chmod 0755 "$into"/bin/*
