#!/bin/sh
# Writes a software bill of materials (CycloneDX, JSON) of a built binary: the modules that are really in it, their
# versions, hashes and licences.
#
#   deploy/image/sbom.sh build/extproc build/extproc.cdx.json
set -eu
binary=$(realpath "$1") out=$(realpath -m "$2")
cd "$(dirname "$0")/../../test/manifests"
exec go tool cyclonedx-gomod bin -json -licenses -std -output "$out" "$binary"
