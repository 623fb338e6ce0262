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

func TestParseStatSkipsTheName(t *testing.T) {
	t.Parallel()
	text := "12 (a) b) (c) S 1 12 12 0 -1 4194560 100 0 0 0 130 25 0 0 20 0 9 0 5 6 7"
	got, err := parseStat([]byte(text))
	if want := 1550 * time.Millisecond; err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if _, err := parseStat([]byte("12 (a) S 1")); err == nil {
		t.Error("got no error for a line that is cut short")
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
