//go:build race

package e2e

// buildFlags make the sidecar under test watch for data races when the tests do.
var buildFlags = []string{"-race"}
