#!/usr/bin/env bash
# Compare protos/ with those of main, so that no change breaks a client that is already deployed. Without a main to
# compare with (a first commit, an exported tree, a shallow clone of another branch) it says so and passes.
set -euo pipefail
cd "$(dirname "$0")/.."
for branch in main origin/main; do
  if base=$(git rev-parse --verify --quiet "$branch^{commit}" 2>/dev/null) &&
    git cat-file -e "$base:protos" 2>/dev/null; then
    exec "${BUF:-buf}" breaking --against "$(git rev-parse --git-common-dir)#ref=$base"
  fi
done
echo "buf breaking: skipped, there is no main with protos/ to compare with"
