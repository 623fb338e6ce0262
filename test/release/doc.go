// Package release tests what a release is made of: the workflows by actionlint, and the steps that need no registry by running
// them. `make test-release` runs it.
package release
