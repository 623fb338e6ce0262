#!/bin/sh
# Tells the sidecar which process it protects: numbers of processes are known only once they run. Copies the sidecar's
# settings with the caller's number in them to where the sidecar reads them, then becomes the command given.
#
#   name-process.sh SETTINGS COPY                only copies, for the start of the sidecar
#   name-process.sh SETTINGS COPY COMMAND ARG…   names the process that COMMAND will be
set -eu
settings=$1 copy=$2
shift 2
process=0
[ $# -eq 0 ] || process=$$
# A new file in place of the old one: the sidecar never reads half of it.
sed "s/^\( *cgroupPid:\) 0$/\1 $process/" "$settings" >"$copy.new"
mv "$copy.new" "$copy"
[ $# -eq 0 ] || exec "$@"
