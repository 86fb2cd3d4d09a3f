#!/usr/bin/env bash
# Regenerate the modules of protos/ into a temporary folder and compare with gen/: generated code is committed, so it
# must be what the protos say.
set -euo pipefail
cd "$(dirname "$0")/.."
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
tools/generate_protos.sh "$fresh" >/dev/null
if ! diff -r --exclude=__pycache__ "$fresh/corral" gen/corral; then
  echo "gen/ is not what protos/ says: run make proto and commit the result" >&2
  exit 1
fi
