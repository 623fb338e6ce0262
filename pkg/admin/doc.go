// Package admin serves what operators and probes ask for: liveness, readiness, the health document, metrics, the
// configuration in force (redacted) and profiles. Nothing here is authenticated, so it listens on loopback by default.
//
// Liveness says that the process answers, and nothing else: a store or a memory limit in trouble is no reason to
// restart it. Readiness says whether Envoy should send it work.
package admin
