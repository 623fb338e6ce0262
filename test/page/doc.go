// Package page opens the status page in a real browser while load runs and compares what it shows with the health
// document it was made from. It needs Chromium, and fails without it.
//
//	go test -tags browser ./test/page -run Pictures -args -pictures ../../docs/img
//
// takes the pictures of the documentation.
package page
