// Package peers is a module of its own for the servers that Headgate is compared with, so that what they depend on reaches
// neither Headgate nor the harness. It holds no code: its go.mod names the commands to build, as tools.
package peers
