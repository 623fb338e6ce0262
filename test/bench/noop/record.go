package main

import (
	"fmt"
	"os"
	"sync/atomic"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/test/bench/direct"
)

// recorder writes the messages of the first exchange to a file, for the benchmarks without Envoy to replay.
type recorder struct {
	file  *os.File
	begun atomic.Bool
}

func newRecorder(path string) (*recorder, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	return &recorder{file: file}, nil
}

// begin says whether this exchange is the one to record.
func (r *recorder) begin() (first bool) { return r.begun.CompareAndSwap(false, true) }

func (r *recorder) write(request *extproc.ProcessingRequest) error {
	line, err := direct.EncodeLine(request)
	if err != nil {
		return err
	}
	if _, err := r.file.Write(line); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

// end makes the recording complete.
func (r *recorder) end(first bool) {
	if first {
		_ = r.file.Sync() // a lost recording shows when it is replayed
	}
}

func (r *recorder) close() error { return r.file.Close() }
