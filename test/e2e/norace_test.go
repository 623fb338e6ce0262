//go:build !race

package e2e

// buildFlags are those of the sidecar under test.
var buildFlags []string
