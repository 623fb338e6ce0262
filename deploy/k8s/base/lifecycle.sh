#!/bin/bash
# Asks Envoy's admin, which listens on loopback, what probes and the stop of the pod need. Envoy's image has bash but no
# HTTP client.
#
#   lifecycle.sh ready            succeeds while Envoy takes new requests
#   lifecycle.sh drain SECONDS    tells clients to go elsewhere, then waits for requests in flight, at most SECONDS
set -u
admin=${ENVOY_ADMIN:-127.0.0.1/9901}

ask() { # ask METHOD PATH: the whole answer
  exec 3<>"/dev/tcp/$admin" || return
  printf '%s %s HTTP/1.1\r\nhost: admin\r\nconnection: close\r\ncontent-length: 0\r\n\r\n' "$1" "$2" >&3
  cat <&3
  exec 3>&-
}

in_flight() {
  local sum=0 name value
  while read -r name value; do
    [[ $name == *downstream_rq_active: && $name != http.admin.* ]] && sum=$((sum + ${value//[^0-9]/}))
  done < <(ask GET '/stats?filter=%5Ehttp%5C..*downstream_rq_active$')
  echo "$sum"
}

case ${1-} in
ready)
  [[ $(ask GET /ready) == 'HTTP/1.1 200'* ]]
  ;;
drain)
  ask POST /healthcheck/fail >/dev/null # not ready any more; answers close their connections
  until_second=$((SECONDS + ${2:-30}))
  sleep "${DRAIN_LEAST:-5}" # until the endpoints are withdrawn everywhere, requests still come
  while ((SECONDS < until_second)) && (($(in_flight) > 0)); do sleep 1; done
  ;;
*)
  echo "usage: $0 ready | drain SECONDS" >&2
  exit 2
  ;;
esac
