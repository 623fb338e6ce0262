// Package endurance shows what stays true of a running product for a long time and under what happens to it: `make soak` keeps
// a mixed load up and fits slopes of what could leak, `make overload` sends ten times what the upstream can do, and `make
// chaos` kills, stops and starves one part after another under load.
//
// The judge is an upstream of our own that knows nothing of the sidecar: it counts every request by a name that the client
// gives it once, and holds each connection's lease to its fencing token.
package endurance
