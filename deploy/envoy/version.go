package envoyconf

import (
	"fmt"
	"strconv"
	"strings"
)

// Oldest and newest minor version of Envoy 1 that a configuration can be printed for. Older ones lack
// send_body_without_waiting_for_header_response, without which the upstream is contacted before the decision.
const (
	oldestMinor  = 32
	defaultMinor = 40
)

// since are the fields that came later than oldestMinor, by the minor version that has them first, with what is lost without.
var since = map[string]struct {
	Minor   int
	Without string
}{
	"status_on_error":             {36, "clients get 500 instead of 503 while the sidecar is away"},
	"allow_content_length_header": {38, "upstreams see chunked bodies"},
}

// minorOf reads a version such as 1.38 or v1.38.2; an empty one is the newest.
func minorOf(version string) (int, error) {
	if version == "" {
		return defaultMinor, nil
	}
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	minor := 0
	var err error
	if len(parts) >= 2 {
		minor, err = strconv.Atoi(parts[1])
	}
	if err != nil || len(parts) < 2 || len(parts) > 3 || parts[0] != "1" {
		return 0, fmt.Errorf("version of Envoy %q, want one such as 1.%d", version, defaultMinor)
	}
	if minor < oldestMinor {
		return 0, fmt.Errorf("version of Envoy %q: 1.%d or newer is needed, for send_body_without_waiting_for_header_response", version, oldestMinor)
	}
	return minor, nil
}

// Has reports whether the version of Envoy that is printed for has a field.
func (v *view) Has(field string) bool { return v.Minor >= since[field].Minor }

// Lacks returns a comment on a field that the version of Envoy does not have.
func (v *view) Lacks(field string) string {
	s := since[field]
	return fmt.Sprintf("%s needs Envoy 1.%d; without it %s.", field, s.Minor, s.Without)
}
