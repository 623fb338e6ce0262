#!/usr/bin/env bash
# Fuzzes every Fuzz function of the product, FUZZTIME each (60s by default), prints one table and exits with 1 if one of
# them found a fault. A failing input is left in the package's testdata/fuzz, from where `go test` runs it ever after.
set -uo pipefail
cd "$(dirname "$0")/../.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
printf '%-24s %-24s %12s  %s\n' package target executions result
for package in $(grep -rl --include='*_test.go' '^func Fuzz' cmd pkg internal | xargs -n 1 dirname | sort -u); do
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(f \*testing\.F.*/\1/p' "$package"/*_test.go); do
		result=ok
		if ! go test "./$package" -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-60s}" >"$log" 2>&1; then
			result=FAILED
			failed=1
		fi
		executions=$(sed -n 's/.*execs: \([0-9]*\).*/\1/p' "$log" | tail -1)
		printf '%-24s %-24s %12s  %s\n' "$package" "$target" "${executions:-0}" "$result"
		if [ "$result" = FAILED ]; then tail -40 "$log" | sed 's/^/    /'; fi
	done
done
exit $failed
