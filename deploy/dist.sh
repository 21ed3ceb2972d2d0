#!/usr/bin/env bash
# Builds the files with which a Spark cluster runs Ledger Reaper (docs/deploying.md); `make dist` calls it.
#
#   deploy/dist.sh dist
#   SPARK=4.3 deploy/dist.sh dist              # with PySpark 4.3 (or 4.2) instead of 3.5 (docs/limits.md)
#   deploy/dist.sh dist /opt/ledger-reaper     # from an installation by deploy/install.sh
#
# The folder then contains the wheel; environment.tar.gz for spark-submit's --archives, so that a worker needs only
# Java and Python of the version with which the environment was made; and jars/ with SHA512SUMS.
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
version=$(basename "$venv"/lib/python3.*)
packages=lib/$version/site-packages

# A worker's Python may be in another folder, so the environment contains no Python and uses the worker's.
rm "$venv"/bin/python*
cp "$here/worker-python" "$venv/bin/python"
chmod 0755 "$venv/bin/python"
ln -s python "$venv/bin/python3"
ln -s python "$venv/bin/$version"

# Workers have Spark's Java archives, and need neither the packages' tests nor pip.
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
