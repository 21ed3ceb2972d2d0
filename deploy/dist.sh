#!/usr/bin/env bash
# Builds what a Spark cluster needs to run Ledger Reaper (docs/deploying.md) into a folder: `make dist` does.
#
#   deploy/dist.sh dist
#   deploy/dist.sh dist /opt/ledger-reaper     # from what deploy/install.sh has installed there
#
# The wheel; environment.tar.gz for spark-submit's --archives, with which a worker needs Python 3.11 and Java only; jars/
# with SHA512SUMS.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
into=${1:?name the folder to build into, for example dist}
pack=${VENV_PACK:-venv-pack}

mkdir -p "$into"
into=$(cd "$into" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if [ $# -gt 1 ]; then
  cp -a "$2" "$scratch/made"
else
  "$here/install.sh" "$scratch/made"
fi
venv=$scratch/made/venv
packages=lib/python3.11/site-packages

# A worker's Python may stand elsewhere than ours, so the environment brings none: it takes the worker's.
rm "$venv"/bin/python*
cp "$here/worker-python" "$venv/bin/python"
chmod 0755 "$venv/bin/python"
ln -s python "$venv/bin/python3"
ln -s python "$venv/bin/python3.11"

# Workers have Spark's Java archives. Only tests import tests, and only installers import pip.
TMPDIR=$scratch "$pack" --quiet --force --prefix "$venv" --output "$into/environment.tar.gz" \
  --exclude "$packages/pyspark/jars/*" --exclude "$packages/pyspark/python/*" --exclude "$packages/pyspark/examples/*" \
  --exclude "$packages/pyspark/data/*" --exclude "$packages/pip/*" --exclude "$packages/setuptools/*" \
  --exclude "$packages/*/tests/*" --exclude "$packages/pyarrow/include/*"

rm -rf "$into/jars"
rm -f "$into"/ledger_reaper-*.whl
mv "$scratch/made/jars" "$into/jars"
mv "$scratch"/made/wheel/ledger_reaper-*.whl "$into"
chmod 0644 "$into/environment.tar.gz"
(cd "$into" && sha512sum -- *.whl environment.tar.gz > SHA512SUMS)
