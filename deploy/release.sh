#!/usr/bin/env bash
# Builds a release and verifies it (CONTRIBUTING.md); `make release` calls it with the development environment in PATH.
#
#   deploy/release.sh dist             # refuses while changes/ has fragments that are not in the changelog
#   deploy/release.sh dist --draft     # does not
#
# The folder DIST/ledger-reaper-VERSION then contains
#   ledger_reaper-VERSION-….whl        the program, with its man pages; for pip and pipx
#   ledger_reaper_client-VERSION-….whl the client for programs that drop ledgers (clients/python)
#   ledger_reaper-VERSION.tar.gz       the sources that an installation needs, with deploy/ and docs/
#   constraints.txt                    the versions of all packages with which it was tested
#   constraints-spark4.txt, constraints-spark4.2.txt          and with which versions of PySpark 4
#   ledger-reaper-VERSION.tgz          the Helm chart
#   kubernetes.yaml, kubernetes-executors.yaml    the manifests, as kustomize builds them
#   alerts.yaml, dashboard.json        the alert rules for Prometheus, the dashboard for Grafana
#   man.tar.gz                         the man pages
#   sbom.cdx.json, sbom-spark4.cdx.json           all packages and Java archives of an installation (CycloneDX)
#   SHA256SUMS
set -euo pipefail

source=$(cd "$(dirname "$0")/.." && pwd)
into=${1:?name the folder to build into, for example dist}
draft=${2:-}
cd "$source"
version=$(python -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
base_python=$(python -c 'import sys; print(sys._base_executable)')
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fragments=$(find changes -name '*.md' ! -name README.md)
if [ -n "$fragments" ] && [ "$draft" != --draft ]; then
  echo "changes/ has fragments that are not in the changelog: towncrier build --version $version" >&2
  exit 1
fi

mkdir -p "$into"
into=$(cd "$into" && pwd)/ledger-reaper-$version
rm -rf "$into"
mkdir "$into"
# the same commit gives the same files
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

echo "tools: helm, kustomize, promtool"
tools=$(python -m tests.go_tools --required helm kustomize promtool)
{ read -r helm; read -r kustomize; } <<< "$tools"

echo "wheel, source archive, man pages"
mkdir "$scratch/source"
cp -R pyproject.toml MANIFEST.in README.md LICENSE SECURITY.md CHANGELOG.md CONTRIBUTING.md constraints*.txt conf \
  deploy docs streaming udfs "$scratch/source"
find "$scratch/source" -name __pycache__ -prune -exec rm -r {} +
PYTHONPATH=. python deploy/man_pages.py "$scratch/source/man"
python -m build --outdir "$into" "$scratch/source" > "$scratch/build.log" 2>&1 || { cat "$scratch/build.log" >&2; exit 1; }
wheel=("$into"/ledger_reaper-"$version"-*.whl)
check-wheel-contents --config pyproject.toml "${wheel[0]}"
tar --create --gzip --file "$into/man.tar.gz" --directory "$scratch/source" --sort=name --owner=0 --group=0 \
  --mtime="@$SOURCE_DATE_EPOCH" man
cp constraints*.txt "$into"

mkdir "$scratch/home" "$scratch/elsewhere"
elsewhere() { # runs a command outside the checkout, without its environment
  (cd "$scratch/elsewhere" && env -i PATH="$PATH" HOME="$scratch/home" LANG=C.UTF-8 \
    XDG_CACHE_HOME="${XDG_CACHE_HOME:-$HOME/.cache}" ${JAVA_HOME:+JAVA_HOME="$JAVA_HOME"} "$@")
}
verified() { # installs the wheel with an extra into an empty environment, and runs commands
  local venv=$scratch/$1
  "$base_python" -m venv --without-pip "$venv"
  local pip=(python -m pip --quiet --disable-pip-version-check --python "$venv/bin/python")
  "${pip[@]}" install --constraint "$2" "${wheel[0]}[$1]"
  "${pip[@]}" check
  reaper() { elsewhere "$venv/bin/ledger-reaper" "$@"; }
  [ "$(reaper --version)" = "ledger-reaper $version" ]
  reaper init --untried --out "$1.toml" > "$scratch/said"
  reaper config validate --config "$1.toml" >> "$scratch/said"
  reaper config show --config "$1.toml" > "$scratch/shown.toml"
  reaper config validate --config "$scratch/shown.toml" >> "$scratch/said"
  reaper jars --to "$scratch/$1-jars" > "$scratch/said"
  (cd "$scratch/$1-jars" && sha512sum --check --quiet --strict SHA512SUMS)
  cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file "$scratch/python.json" \
    "$venv/bin/python"
  PYTHONPATH=. python deploy/sbom.py "$scratch/python.json" "$into/$3"
}

echo "installation into empty environments"
verified spark35 constraints.txt sbom.cdx.json
verified spark4 constraints-spark4.txt sbom-spark4.cdx.json
# the help of every command, from the wheel alone
cp deploy/man_pages.py "$scratch/elsewhere"
elsewhere "$scratch/spark35/bin/python" man_pages.py man
diff --recursive "$scratch/elsewhere/man" "$scratch/spark35/share/man/man1"

echo "the client's wheel, in an empty environment"
cp -R clients/python "$scratch/client"
find "$scratch/client" -name __pycache__ -prune -exec rm -r {} +
python -m build --wheel --outdir "$into" "$scratch/client" > "$scratch/build.log" 2>&1 || { cat "$scratch/build.log" >&2; exit 1; }
client_wheel=("$into"/ledger_reaper_client-"$version"-*.whl)
check-wheel-contents "${client_wheel[0]}"
"$base_python" -m venv --without-pip "$scratch/client-venv"
client_pip=(python -m pip --quiet --disable-pip-version-check --python "$scratch/client-venv/bin/python")
"${client_pip[@]}" install "${client_wheel[0]}"
"${client_pip[@]}" check
elsewhere "$scratch/client-venv/bin/python" -c 'import pulsar; from ledger_reaper_client import *'

echo "chart, manifests, alerts, dashboard"
python -m pytest --quiet tests/architecture/test_{chart,alerts,dashboard}.py
"$helm" package deploy/helm/ledger-reaper --destination "$into" > "$scratch/said"
"$helm" template ledger-reaper "$into/ledger-reaper-$version.tgz" --kube-version 1.29.0 > "$scratch/said"
"$kustomize" build deploy/kubernetes/base > "$into/kubernetes.yaml"
"$kustomize" build deploy/kubernetes/executors > "$into/kubernetes-executors.yaml"
cp deploy/prometheus/alerts.yaml "$into"
cp deploy/grafana/ledger-reaper.json "$into/dashboard.json"

(cd "$into" && sha256sum -- *) > "$scratch/SHA256SUMS"
mv "$scratch/SHA256SUMS" "$into"
echo "$into"
cat "$into/SHA256SUMS"
