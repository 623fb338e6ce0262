package usage

import (
	"net/http"
	"net/http/httptest"
	"net/http/pprof"
	"os"
	"strings"
	"testing"
	"time"
)

func TestResidentIsReadInBytes(t *testing.T) {
	t.Parallel()
	if got, err := parseStatus([]byte("VmPeak:\t 9 kB\nVmRSS:\t   1024 kB\n")); err != nil || got != 1<<20 {
		t.Errorf("got %d, %v, want 1 MiB", got, err)
	}
	if _, err := parseStatus([]byte("VmPeak:\t 9 kB\n")); err == nil {
		t.Error("got no error for a status without VmRSS")
	}
	if got, err := Resident(os.Getpid()); err != nil || got < 1<<20 {
		t.Errorf("this process: got %d, %v, want at least 1 MiB", got, err)
	}
}

func TestCPUGrowsWithWork(t *testing.T) {
	before, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); time.Since(begin) < 100*time.Millisecond; {
		_ = strings.Repeat("x", 1000)
	}
	after, err := CPU(os.Getpid())
	if err != nil || after <= before {
		t.Errorf("got %v after 100 ms of work, %v before, error %v", after, before, err)
	}
}

func TestAllocatedReadsTheCounters(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(pprof.Index))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	before, err := Allocated(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	var kept [][]byte
	for range 1000 {
		kept = append(kept, make([]byte, 1000))
	}
	after, err := Allocated(t.Context(), address)
	if err != nil || after.Objects < before.Objects+1000 || after.Bytes < before.Bytes+1_000_000 || len(kept) != 1000 {
		t.Errorf("got %+v, error %v, want 1000 objects and 1 MB more than %+v", after, err, before)
	}
}
