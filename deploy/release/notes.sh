#!/bin/sh
# Prints what the changelog says of a version, and fails where it says nothing: no release without notes.
#
#   deploy/release/notes.sh v1.2.3
set -eu
cd "$(dirname "$0")/../.."
version=${1#v}
notes=$(awk -v heading="## [$version]" '
  index($0, heading) == 1 { inside = 1; next }
  /^## \[/ || /^\[[^]]*\]: / { inside = 0 }
  inside' CHANGELOG.md)
[ -n "$(printf %s "$notes" | tr -d '[:space:]')" ] || { echo "CHANGELOG.md has no section [$version]" >&2; exit 1; }
printf '%s\n' "$notes"
