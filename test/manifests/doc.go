// Package manifests tests what is deployed: the manifests under deploy/k8s, the Envoy configuration in them, alert rules,
// dashboard and image. It is a module of its own, so that the API types of Kubernetes, Istio, Gateway API, Envoy Gateway and
// Prometheus never become dependencies of Headgate.
//
// Overlays are built with kustomize as a library and decoded strictly with the API types; a field that does not exist is an
// error, as are references to things that are not there. Every Envoy configuration is given to a real Envoy, as
// internal/stack finds it. Nothing here needs a cluster, kubectl or the network.
//
// Files that say they are printed are written by
//
//	go test . -update
//
// and compared by go test.
package manifests
