package lease

import (
	"strconv"
	"strings"
	"time"
)

// readField reads one field of a pool's hash: a holder that is still live, or a rest that is not over.
func readField(name, value string, now int64, held []holder, rests map[string]time.Time) []holder {
	kind, connection, _ := strings.Cut(name, ":")
	switch kind {
	case "c":
		if h, ok := parseHolder(connection, value); ok && h.expires.UnixMilli() > now {
			return append(held, h)
		}
	case "r":
		if until, err := strconv.ParseInt(value, 10, 64); err == nil && until > now {
			rests[connection] = time.UnixMilli(until).UTC()
		}
	}
	return held
}

// parseHolder reads what lua/common.lua calls a holder.
func parseHolder(connection, value string) (holder, bool) {
	f := strings.Fields(value)
	if len(f) != 6 {
		return holder{}, false
	}
	h := holder{connection: connection, owner: Owner(f[0]), principal: f[2]}
	for i, into := range []*time.Time{&h.acquiredAt, &h.renewedAt, &h.expires} {
		ms, err := strconv.ParseInt(f[3+i], 10, 64)
		if err != nil {
			return holder{}, false
		}
		*into = time.UnixMilli(ms).UTC()
	}
	var err error
	h.generation, err = strconv.ParseInt(f[1], 10, 64)
	return h, err == nil
}
