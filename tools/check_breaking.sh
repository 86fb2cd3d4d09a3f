#!/usr/bin/env bash
# Compare protos/ with those of the last release (its tag, v1.2.3), or of main if there is no tag, so that no change
# breaks a client that is already deployed. Without either (a first commit, an exported tree, a shallow clone of another
# branch) it says so and passes.
set -euo pipefail
cd "$(dirname "$0")/.."
release=$(git describe --tags --match 'v[0-9]*' --abbrev=0 2>/dev/null || true)
for commit in ${release:+"$release"} main origin/main; do
  if base=$(git rev-parse --verify --quiet "$commit^{commit}" 2>/dev/null) &&
    git cat-file -e "$base:protos" 2>/dev/null; then
    exec "${BUF:-buf}" breaking --against "$(git rev-parse --git-common-dir)#ref=$base"
  fi
done
echo "buf breaking: skipped, there is no release and no main with protos/ to compare with"
