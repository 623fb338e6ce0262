// Package admin serves what operators and probes ask for: liveness, readiness, the health document, a status page,
// metrics, the configuration in force (redacted) and profiles. Nothing here is authenticated, so it listens on loopback by default.
//
// The status page at / shows the health document, in one file without outside assets; everything that it shows beyond
// the document are charts of the last minutes. Event streams are bounded in number and end when the server shuts down.
//
// Liveness says that the process answers, and nothing else: a store or a memory limit in trouble is no reason to
// restart it. Readiness says whether Envoy should send it work.
package admin
