// A Kubernetes node for tests on one machine: what `make cluster` starts.
module github.com/headgate/headgate/tools/cluster

go 1.26

require github.com/vishvananda/netlink v1.3.1

require (
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sys v0.10.0 // indirect
)
