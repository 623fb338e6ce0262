#!/bin/sh
# Builds what a release consists of, besides the image: an archive for each platform with the binary, licence and schema of
# the configuration, a bill of materials (CycloneDX) for each architecture, the Helm chart, and the checksums of all. The
# same tree gives the same bytes. Publishes nothing.
#
#   deploy/release/build.sh v1.2.3 OUT [linux/amd64 ...]
set -eu
version=$1
out=$(realpath -m "$2")
shift 2
echo "$version" | grep -Eqx 'v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?' ||
  { echo "version '$version': want one of Semantic Versioning, such as v1.2.3" >&2; exit 1; }
cd "$(dirname "$0")/../.."
case $version in
*-dry-run*) ;;
*) deploy/release/notes.sh "$version" >/dev/null ;;
esac
date=$(git log -1 --format=%cI 2>/dev/null || echo 1970-01-01T00:00:00Z)
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for platform in "${@:-}"; do
  [ -n "$platform" ] || set -- linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
done
for platform in "$@"; do
  os=${platform%/*}
  arch=${platform#*/}
  name=headgate-extproc_${version}_${os}_$arch
  mkdir "$work/$name"
  CGO_ENABLED=0 GOOS=$os GOARCH=$arch \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$version" -o "$work/$name/extproc" ./cmd/extproc
  cp LICENSE CHANGELOG.md deploy/headgate.schema.json "$work/$name/"
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="$date" -C "$work" -c "$name" | gzip -n >"$out/$name.tar.gz"
  if [ "$os" = linux ]; then
    deploy/image/sbom.sh "$out/headgate-extproc_${version}_$arch.cdx.json" "$arch"
  fi
  echo "$out/$name.tar.gz"
done
go build -C tools/helm -o "$work/helm" helm.sh/helm/v3/cmd/helm
"$work/helm" package --version "${version#v}" --app-version "$version" --destination "$out" deploy/helm/headgate >/dev/null
(cd "$out" && rm -f SHA256SUMS && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS)
