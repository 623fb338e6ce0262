package main

import (
	"strings"
	"testing"
)

// TestFindings: what is called is a fault with the version that mends it; what is only there is counted.
func TestFindings(t *testing.T) {
	const text = `{"config": {"go_version": "go1.26.8"}}
{"osv": {"id": "GO-1", "summary": "reads too far"}} {"osv": {"id": "GO-2", "summary": "never called"}}
{"finding": {"osv": "GO-1", "trace": [{"module": "m", "version": "v1.0.0"}]}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.0.1", "trace": [{"module": "m", "version": "v1.0.0", "function": "F"}, {"function": "main"}]}}
{"finding": {"osv": "GO-2", "fixed_version": "v3.0.0", "trace": [{"module": "n", "version": "v2.0.0"}]}}`
	rows, err := findings(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	want := []row{{"GO-1", "m@v1.0.0", "fixed in v1.0.1: reads too far", true}, {"vulnerabilities", "go1.26.8", "1 in what is called, 1 in what is not", true}}
	if len(rows) != 2 || rows[0] != want[0] || rows[1] != want[1] {
		t.Errorf("got %v, want %v", rows, want)
	}
	for _, empty := range []string{"", "{}", "no JSON"} {
		if rows, err := findings(strings.NewReader(empty)); err == nil {
			t.Errorf("%q: %v, want an error: nothing was looked at", empty, rows)
		}
	}
}

// TestLicences: a module without a licence, or with one that is not agreed beside one that is, is a fault.
func TestLicences(t *testing.T) {
	const bill = `{"components": [
	{"name": "a", "version": "v1", "evidence": {"licenses": [{"license": {"id": "MIT"}}]}},
	{"name": "b", "version": "v1", "evidence": {"licenses": [{"license": {"id": "MIT"}}, {"license": {"id": "AGPL-3.0"}}]}},
	{"name": "c", "version": "v1"},
	{"name": "d", "version": "v1", "licenses": [{"license": {"name": "Commons Clause"}}]},
	{"name": "std", "version": "go1.26.8"}]}`
	rows, err := licences([]byte(bill))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rows {
		if r.fault {
			got = append(got, r.which)
		}
	}
	if want := "b@v1 c@v1 d@v1 5 modules"; strings.Join(got, " ") != want {
		t.Errorf("faults in %q, want %q", got, want)
	}
	if rows, err := licences([]byte(`{"components": []}`)); err == nil {
		t.Errorf("an empty bill: %v, want an error", rows)
	}
}
