#!/bin/sh
# Builds the image without a network, from a binary that is built here, and checks what is in it. Needs Go and buildah
# (apt-get install buildah) and leaves nothing behind. Of the Dockerfile it takes the last stage as it is; the stage that
# compiles is replaced by this script, since it needs an image with Go.
#
#   deploy/image/check.sh            the architecture of this machine
#   deploy/image/check.sh arm64      another one
set -eu
cd "$(dirname "$0")/../.."
arch=${1:-$(go env GOARCH)}
work=$(mktemp -d)
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
export CONTAINERS_STORAGE_CONF="$work/storage.conf"
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s/graph"\nrunroot = "%s/run"\n' "$work" "$work" >"$CONTAINERS_STORAGE_CONF"
trap 'buildah rm --all >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

fail() { echo "FAIL: $*" >&2; exit 1; }
want() { # want WHAT EXPECTED GOT
  [ "$2" = "$3" ] || fail "$1: want '$2', got '$3'"
  echo "ok: $1: $3"
}

echo "building the binary for linux/$arch"
CGO_ENABLED=0 GOOS=linux GOARCH="$arch" go build -trimpath -buildvcs=false \
  -ldflags "-s -w -X main.version=check" -o "$work/root-fs/extproc" ./cmd/extproc
deploy/image/rootfs.sh "$work/root-fs"

# The context takes the place of the stage "build".
sed -n '/^FROM scratch/,$p' Dockerfile | sed 's/ --from=build / /' >"$work/Dockerfile"
buildah build --quiet --arch "$arch" --build-arg VERSION=check --build-arg REVISION=none \
  -f "$work/Dockerfile" -t headgate-check "$work" >/dev/null

config() { buildah inspect --type image --format "{{$1}}" headgate-check; }
want user 65532:65532 "$(config .OCIv1.Config.User)"
want entrypoint '[/extproc]' "$(config .OCIv1.Config.Entrypoint)"
want architecture "$arch" "$(config .OCIv1.Architecture)"
want volumes 'map[]' "$(config .OCIv1.Config.Volumes)"
want 'exposed ports' 'map[]' "$(config .OCIv1.Config.ExposedPorts)"
want healthcheck '<nil>' "$(config .Docker.Config.Healthcheck)"
want version check "$(config 'index .OCIv1.Config.Labels "org.opencontainers.image.version"')"
want revision none "$(config 'index .OCIv1.Config.Labels "org.opencontainers.image.revision"')"

container=$(buildah from --pull-never headgate-check)
root=$(buildah mount "$container")
want files './etc/group ./etc/passwd ./etc/ssl/certs/ca-certificates.crt ./extproc' \
  "$(cd "$root" && find . -type f | grep -v '^./\(dev\|proc\|sys\)/' | sort | tr '\n' ' ' | sed 's/ $//')"
want 'owner of /run/headgate' 65532:65532 "$(stat -c %u:%g "$root/run/headgate")"
want 'owner of /extproc' 0:0 "$(stat -c %u:%g "$root/extproc")"
if [ "$arch" = "$(go env GOARCH)" ]; then
  want 'version of the binary' 'headgate extproc check' "$(chroot "$root" /extproc version | cut -d' ' -f1-3)"
  want 'check of the default configuration, as the user' ok \
    "$(chroot --userspec=65532:65532 "$root" /extproc check | cut -d, -f1)"
fi
echo "ok: $(du -h "$work/root-fs/extproc" | cut -f1) of binary"
