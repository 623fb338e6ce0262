#!/bin/sh
# Adds to DIR what the image needs besides the binary: root certificates, the user, the directory of the socket.
set -eu
dir=$1
mkdir -p "$dir/etc/ssl/certs" "$dir/run/headgate"
cp "${CERTIFICATES:-/etc/ssl/certs/ca-certificates.crt}" "$dir/etc/ssl/certs/ca-certificates.crt"
echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >"$dir/etc/passwd"
echo 'nonroot:x:65532:' >"$dir/etc/group"
