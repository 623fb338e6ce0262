#!/bin/sh
# Makes what the image needs besides the binary.
#
#   rootfs.sh DIR USERS    DIR gets root certificates and the user; USERS gets what that user owns, the socket's directory
set -eu
dir=$1
mkdir -p "$dir/etc/ssl/certs" "$2/run/headgate"
cp "${CERTIFICATES:-/etc/ssl/certs/ca-certificates.crt}" "$dir/etc/ssl/certs/ca-certificates.crt"
echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >"$dir/etc/passwd"
echo 'nonroot:x:65532:' >"$dir/etc/group"
