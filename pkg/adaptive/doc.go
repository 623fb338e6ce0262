// Package adaptive shares one cluster's capacity among tenants: it prices requests, adapts a limit on the cost in flight,
// queues what is above it fairly by work, and settles with what each request really used.
package adaptive
