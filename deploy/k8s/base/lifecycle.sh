#!/bin/bash
# Asks Envoy's admin, which listens on loopback, what probes and the stop of the pod need. Envoy's image has bash but no
# HTTP client.
#
#   lifecycle.sh ready            succeeds while Envoy and the sidecar take new requests; while the sidecar is away, answers close
#                                 their connections, so that clients go to other pods
#   lifecycle.sh drain SECONDS    tells clients to go elsewhere, then waits for requests in flight, at most SECONDS
set -u
admin=${ENVOY_ADMIN:-127.0.0.1/9901}
# Not empty while this script, and not the drain, has told Envoy to send clients away.
away=${SIDECAR_AWAY:-/run/headgate/sidecar-away}

ask() { # ask METHOD PATH: the whole answer
  exec 3<>"/dev/tcp/$admin" || return
  printf '%s %s HTTP/1.1\r\nhost: admin\r\nconnection: close\r\ncontent-length: 0\r\n\r\n' "$1" "$2" >&3
  cat <&3
  exec 3>&-
}

sum() { # sum REGEX: of the statistics that match
  local sum=0 name value
  while read -r name value; do
    [[ $name == cluster.*: || ($name == http.*: && $name != http.admin.*) ]] && sum=$((sum + ${value//[^0-9]/}))
  done < <(ask GET "/stats?filter=$1")
  echo "$sum"
}

case ${1-} in
ready)
  # The sidecar's cluster is the one with active health checks.
  if (($(sum '%5Ecluster%5C.headgate%5C.membership_healthy$') == 0)); then
    [[ $(ask GET /ready) != 'HTTP/1.1 200'* ]] || { echo away >"$away" && ask POST /healthcheck/fail >/dev/null; }
    echo 'the sidecar does not answer'
    exit 1
  fi
  [[ ! -s $away ]] || { : >"$away" && ask POST /healthcheck/ok >/dev/null; }
  [[ $(ask GET /ready) == 'HTTP/1.1 200'* ]]
  ;;
drain)
  [[ ! -s $away ]] || : >"$away"
  ask POST /healthcheck/fail >/dev/null # not ready any more; answers close their connections
  until_second=$((SECONDS + ${2:-30}))
  sleep "${DRAIN_LEAST:-5}" # until the endpoints are withdrawn everywhere, requests still come
  while ((SECONDS < until_second)) && (($(sum '%5Ehttp%5C..*downstream_rq_active$') > 0)); do sleep 1; done
  ;;
*)
  echo "usage: $0 ready | drain SECONDS" >&2
  exit 2
  ;;
esac
