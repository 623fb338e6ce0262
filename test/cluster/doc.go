// Package cluster tests the manifests in a real Kubernetes node, which `make cluster` starts: every overlay is applied as users
// apply it, and packets have to arrive through its Services. `make test-cluster` runs the tests; they have the build tag
// cluster.
//
// The node's own limits show: two processors at times, so requests of processor time are lowered, and a network plugin that
// does not enforce NetworkPolicies, so they only have to be accepted. Redis is the version of the tests' wheel under the
// manifests' name.
package cluster
