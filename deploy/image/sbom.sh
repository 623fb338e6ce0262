#!/bin/sh
# Writes a software bill of materials (CycloneDX, JSON) of the binary in the image: every module whose code is in it, with
# version, hash and licence, Go's library included.
#
#   deploy/image/sbom.sh OUT           for the architecture of this machine
#   deploy/image/sbom.sh OUT arm64     for another one
set -eu
out=$(realpath -m "$1")
root=$(realpath "$(dirname "$0")/../..")
cd "$root/test/manifests"
tool=$(go tool -n cyclonedx-gomod) # for this machine; what follows is for the image's
export CGO_ENABLED=0 GOOS=linux GOARCH="${2:-$(go env GOARCH)}" GOFLAGS=-trimpath
exec "$tool" app -json -output-version 1.6 -std -licenses -main cmd/extproc -output "$out" "$root"
