package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// TestBytesDecideWhatABodyIs: the cap on messages holds whatever the headers call a body, however it begins and however long
// the client pauses in the middle; and what is within the cap passes.
func TestBytesDecideWhatABodyIs(t *testing.T) {
	t.Parallel()
	const most = 200
	s := start(t, stack.Options{Overlay: fmt.Sprintf("{decision: {uploadIdle: 150ms}, bytes: {structure: {hardMaxMessages: %d}}}", most)})
	document := func(messages int) string {
		return `{"messages":[` + strings.TrimSuffix(strings.Repeat(`{"role":"user"},`, messages), ",") + `]}`
	}
	protocols(t, func(t *testing.T, c *http.Client) {
		for _, media := range []string{"application/json", "text/plain", "application/x-www-form-urlencoded", "application/octet-stream", "multipart/form-data; boundary=x", "{"} {
			for opening, prefix := range map[string]string{"at once": "", "after blanks": "\r\n \t", "after a byte order mark": "\xef\xbb\xbf"} {
				for _, pause := range []time.Duration{0, 400 * time.Millisecond} {
					if pause > 0 && opening != "at once" {
						continue
					}
					for messages, status := range map[int]int{most: 200, most + 1: 413} {
						text := prefix + document(messages)
						got, err := send(t.Context(), s, c, request{method: "POST", path: "/x", headers: map[string]string{"content-type": media},
							body: io.MultiReader(strings.NewReader(text[:40]), &delayed{pause, strings.NewReader(text[40:])})})
						if err != nil || got.status != status {
							t.Errorf("%s, %s, pause %v: %d messages = %d %q (%v), want %d", media, opening, pause, messages, got.status, got.reason(), err, status)
						}
					}
				}
			}
		}
	})
}

// delayed is a reader that waits before its first byte.
type delayed struct {
	wait time.Duration
	io.Reader
}

func (d *delayed) Read(p []byte) (int, error) {
	time.Sleep(d.wait)
	d.wait = 0
	return d.Reader.Read(p)
}
