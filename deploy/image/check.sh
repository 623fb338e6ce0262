#!/bin/sh
# Builds the binary and the image without a network, and checks what is in them. Needs Go, and for the image buildah
# (apt-get install buildah); leaves nothing behind. Of the Dockerfile it takes the last stage as it is; the stage that
# compiles needs an image with Go and is replaced by this script, with the same command.
#
#   deploy/image/check.sh            the architecture of this machine
#   deploy/image/check.sh arm64      another one
set -eu
cd "$(dirname "$0")/../.."
here=$(go env GOARCH)
arch=${1:-$here}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "FAIL: $*" >&2; exit 1; }
want() { # want WHAT EXPECTED GOT
  [ "$2" = "$3" ] || fail "$1: want '$2', got '$3'"
  echo "ok: $1: $3"
}

echo "building for linux/$arch ..."
mkdir "$work/root-fs"
CGO_ENABLED=0 GOOS=linux GOARCH=$arch \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=check" -o "$work/root-fs/extproc" ./cmd/extproc
built() { go version -m "$work/root-fs/extproc" | sed -n "s/^.*build[[:space:]]$1=//p"; }
want 'cgo of the binary' 0 "$(built CGO_ENABLED)"
want 'architecture of the binary' "$arch" "$(built GOARCH)"
if [ "$arch" = "$here" ]; then
  want 'libraries that the binary needs' 'not a dynamic executable' "$(ldd "$work/root-fs/extproc" 2>&1 | sed 's/^[[:space:]]*//')"
  want 'version of the binary' 'headgate extproc check' "$(env -i "$work/root-fs/extproc" version | cut -d' ' -f1-3)"
fi

deploy/image/sbom.sh "$work/sbom.json" "$arch"
modules=$(go version -m "$work/root-fs/extproc" | awk '$1 == "dep" {print $2 "@" $3}')
for module in $modules; do
  grep -q "pkg:golang/$module[?\"]" "$work/sbom.json" || fail "the bill of materials lacks $module"
done
echo "ok: the bill of materials has all $(echo "$modules" | wc -l) modules of the binary"

command -v buildah >/dev/null || fail 'buildah is not installed (apt-get install buildah)'
deploy/image/rootfs.sh "$work/root-fs" "$work/user-fs"
export BUILDAH_ISOLATION=chroot CONTAINERS_STORAGE_CONF="$work/storage.conf"
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s/graph"\nrunroot = "%s/run"\n' "$work" "$work" >"$CONTAINERS_STORAGE_CONF"
trap 'buildah rm --all >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
# The folder takes the place of the stage.
sed -n '/^FROM scratch/,$p' Dockerfile | sed 's/ --from=build / /' >"$work/Dockerfile"
buildah build --quiet --arch "$arch" --build-arg VERSION=check --build-arg REVISION=none \
  --ignorefile /dev/null -f "$work/Dockerfile" -t headgate-check "$work" >/dev/null

config() { buildah inspect --type image --format "{{$1}}" headgate-check; }
label() { config "index .OCIv1.Config.Labels \"org.opencontainers.image.$1\""; }
want user 65532:65532 "$(config .OCIv1.Config.User)"
want entrypoint '[/extproc]' "$(config .OCIv1.Config.Entrypoint)"
want architecture "$arch" "$(config .OCIv1.Architecture)"
want volumes 'map[]' "$(config .OCIv1.Config.Volumes)"
want 'exposed ports' 'map[]' "$(config .OCIv1.Config.ExposedPorts)"
want healthcheck '<nil>' "$(config .Docker.Config.Healthcheck)"
want 'label version' check "$(label version)"
want 'label revision' none "$(label revision)"
want 'label licenses' Apache-2.0 "$(label licenses)"

container=$(buildah from --pull-never headgate-check)
root=$(buildah mount "$container")
want files './etc/group ./etc/passwd ./etc/ssl/certs/ca-certificates.crt ./extproc' \
  "$(cd "$root" && find . -type f | sort | tr '\n' ' ' | sed 's/ $//')"
want 'owner of /run/headgate' 65532:65532 "$(stat -c %u:%g "$root/run/headgate")"
want 'owner of /' 0:0 "$(stat -c %u:%g "$root")"
want 'owner of /extproc' 0:0 "$(stat -c %u:%g "$root/extproc")"
if [ "$arch" = "$here" ]; then
  want 'the default configuration, checked as the user' ok \
    "$(env -i "$(command -v chroot)" --userspec=65532:65532 "$root" /extproc check | cut -d, -f1)"
fi
echo "ok: the binary has $(du -h "$work/root-fs/extproc" | cut -f1)"
