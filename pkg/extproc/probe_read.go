package extproc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// What reading a probe may take. Who sends it has shown no token yet, so a slow sender gets a deadline and no place, and
// all senders together get a bounded amount of memory.
const (
	maxProbeBody     = 256 << 10       // one probe
	maxProbesReading = 16 << 20        // all probes that have begun to arrive
	probeReadTimeout = 5 * time.Second // from the headers to the last byte
	probePiece       = 8 << 10         // read, and counted, at a time
)

// probeMemory counts the bytes of probes that are in memory.
type probeMemory struct{ held atomic.Int64 }

// take counts n more bytes, or reports that there is no room.
func (m *probeMemory) take(n int64) bool {
	if m.held.Add(n) <= maxProbesReading {
		return true
	}
	m.held.Add(-n)
	return false
}

// probeError is a refusal of a probe: what its status says, and why.
type probeError struct {
	status int
	error
}

// readProbeBody reads a probe's body. The caller calls release when it is done with the body, also after an error.
func (m *probeMemory) readProbeBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), refusal *probeError) {
	taken := int64(0)
	release = func() { m.held.Add(-taken) }
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(probeReadTimeout)) // where it cannot be set, the server's own holds
	from := http.MaxBytesReader(w, r.Body, maxProbeBody)
	var b bytes.Buffer
	for {
		if !m.take(probePiece) {
			return nil, release, &probeError{http.StatusServiceUnavailable, errors.New("too many probes are being sent")}
		}
		taken += probePiece
		switch _, err := io.CopyN(&b, from, probePiece); {
		case errors.Is(err, io.EOF):
			_ = c.SetReadDeadline(time.Time{})
			return b.Bytes(), release, nil
		case err != nil:
			return nil, release, whyUnread(err)
		}
	}
}

// whyUnread explains a body that could not be read.
func whyUnread(err error) *probeError {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return &probeError{http.StatusRequestEntityTooLarge, fmt.Errorf("the probe is larger than %d bytes", maxProbeBody)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &probeError{http.StatusRequestTimeout, fmt.Errorf("the probe did not arrive within %v", probeReadTimeout)}
	}
	return &probeError{http.StatusBadRequest, errors.New("the probe could not be read")}
}
