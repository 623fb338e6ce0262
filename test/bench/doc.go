// Package bench is the root of the benchmark module. It is a module of its own so that the peers Headgate is measured
// against never become dependencies of Headgate.
package bench
