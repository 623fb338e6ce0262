package config

import (
	"bytes"
	"errors"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

func TestReferenceNamesEverything(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := Reference(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	everyField(reflect.TypeFor[Config](), "", func(path string, f field) {
		if f.kind == kindSection || f.kind == kindMap || f.kind == kindList && f.typ.Elem().Kind() == reflect.Struct {
			return
		}
		if !strings.Contains(text, f.key+"` |") {
			t.Errorf("no row for %s", path)
		}
		if f.alias != "" && !strings.Contains(text, "`"+f.alias+"`") {
			t.Errorf("%s: %s is missing", path, f.alias)
		}
	})
	for _, l := range staticLeaves() {
		if !strings.Contains(text, "`"+envName(l.path)+"`") {
			t.Errorf("%s is missing", envName(l.path))
		}
	}
	for _, row := range []string{
		"| `bytes.queue.maxWait` | duration, 0 to 24h | `2s` | `HEADGATE_BYTES_QUEUE_MAX_WAIT`, `OMNIROUTE_CHAT_ADMISSION_QUEUE_MS` (ms) |",
		"| `clusters.<name>.lanes.mode` | `off`, `shadow`, `enforce` | `shadow` | `ADAPTIVE_ADMISSION_MODE` |",
		"| `principalSources` | list | `[{apiKey: true}]` |  |",
		"| `bytes.heavySlots` | integer, at least 1, or null | null |",
		"| `tenant.weights.<name>` | number, 0.001 to 1000 |  |  |",
		"| `principals[].id` | string, required |  |  |",
		"| `OMNIROUTE_CHAT_VIRTUAL_TTL_MS` | Accepted without effect",
	} {
		if !strings.Contains(text, row) {
			t.Errorf("expected the row %s", row)
		}
	}
}

func TestReferenceTablesAreWellFormed(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := Reference(&b); err != nil {
		t.Fatal(err)
	}
	cells := regexp.MustCompile(`(^|[^\\])\|`)
	columns := 0
	for i, line := range strings.Split(b.String(), "\n") {
		if !strings.HasPrefix(line, "|") {
			columns = 0
			continue
		}
		n := len(cells.FindAllString(line, -1))
		if columns != 0 && n != columns {
			t.Errorf("line %d has %d bars, the table %d: %s", i+1, n, columns, line)
		}
		columns = n
	}
}

// TestReferenceSaysWhatIsAcceptedAndRefused holds the table of notations against the loader.
func TestReferenceSaysWhatIsAcceptedAndRefused(t *testing.T) {
	t.Parallel()
	keys := map[string]string{
		"size": "bytes: {hardMaxBody: %}", "duration": "bytes: {queue: {maxWait: %}}", "integer": "bytes: {heavySlots: %}",
		"number": "bytes: {memoryRatio: %}", "true or false": "pressure: {psi: {disabled: %}}", "string": "leases: {store: {redis: {keyPrefix: %}}}",
	}
	quoted := regexp.MustCompile("`[^`]+`")
	checked := 0
	for _, line := range strings.Split(referenceIntro(), "\n") {
		columns := strings.Split(line, "|")
		if len(columns) != 5 {
			continue
		}
		text, ok := keys[strings.TrimSpace(columns[1])]
		if !ok {
			continue
		}
		for column, accepted := range map[string]bool{columns[2]: true, columns[3]: false} {
			for _, value := range quoted.FindAllString(column, -1) {
				checked++
				_, err := loadText(t, strings.ReplaceAll(text, "%", strings.Trim(value, "`")))
				if (err == nil) != accepted {
					t.Errorf("%s %s: expected accepted %t, got %v", columns[1], value, accepted, err)
				}
			}
		}
	}
	if checked < 35 {
		t.Errorf("checked only %d values", checked)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestReferenceReportsAFailingWriter(t *testing.T) {
	t.Parallel()
	if err := Reference(brokenWriter{}); err == nil {
		t.Error("expected the writer's error")
	}
}

func TestSuggestions(t *testing.T) {
	t.Parallel()
	known := []string{"maxWait", "window", "uploadIdle", "db"}
	for written, want := range map[string]string{
		"maxwait": "; did you mean maxWait?", "maxWiat": "; did you mean maxWait?", "windows": "; did you mean window?",
		"upload": "", "": "", "dbx": "", "completelyDifferent": "",
	} {
		if got := suggest(written, known); got != want {
			t.Errorf("%q: expected %q, got %q", written, want, got)
		}
	}
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "abc", 0}, {"abc", "abd", 1}, {"abc", "ab", 1}, {"kitten", "sitting", 3}, {"", "abc", 3}} {
		if got := editDistance(test.a, test.b); got != test.want {
			t.Errorf("%s → %s: expected %d, got %d", test.a, test.b, test.want, got)
		}
	}
}
