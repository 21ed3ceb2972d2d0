#!/usr/bin/env bash
# Installs Ledger Reaper below a folder: what the image and the systemd unit start. Java archives pass through the
# user's cache folder; nothing else is written elsewhere.
#
#   deploy/install.sh /opt/ledger-reaper
#
# It needs Python 3.11 (PYTHON names another than python3.11), Java 17, and a package index. Then the folder has
#   wheel/   the program, built from this checkout
#   venv/    it and all it imports, at the versions of constraints.txt
#   jars/    the Java archives, with SHA512SUMS; the program fetches none where LEDGER_REAPER_JARS names this folder
#   bin/     start (the service, on whatever spark.master says), healthy (for a health check), entrypoint (of the image)
set -euo pipefail

source=$(cd "$(dirname "$0")/.." && pwd)
into=${1:?name the folder to install into, for example /opt/ledger-reaper}
python=${PYTHON:-python3.11}

umask 022 # the service runs as another user than the one who installs
mkdir -p "$into/wheel" "$into/bin"
into=$(cd "$into" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "missing: Python 3.11" >&2; exit 1; }
"$python" -m venv "$into/venv"
pip() { "$into/venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

# Setuptools writes beside what it builds, so it builds a copy.
mkdir "$scratch/source"
cp -R "$source"/{pyproject.toml,README.md,LICENSE,conf,streaming,udfs} "$scratch/source"
pip wheel --no-deps --wheel-dir "$into/wheel" "$scratch/source"
pip install --constraint "$source/constraints.txt" "$into"/wheel/ledger_reaper-*.whl
"$into/venv/bin/python" -m pip check --quiet --disable-pip-version-check

"$into/venv/bin/ledger-reaper" jars --to "$into/jars" > "$scratch/jars"
cp "$source"/deploy/{start,healthy,entrypoint} "$into/bin"
chmod 0755 "$into"/bin/*
