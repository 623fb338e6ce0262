package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// folders are where things are: everything that is made lies under .tools/cluster of the repository.
type folders struct {
	Root   string // of the repository
	Source string // of this module
	Bin    string // programs
	Debian string // Debian packages, unpacked
	Images string // image archives
	Node   string // state of the running node; gone when it ends
}

// findFolders starts at the working directory, or at CLUSTER_ROOT for the processes that up starts.
func findFolders() (folders, error) {
	dir := os.Getenv("CLUSTER_ROOT")
	if dir == "" {
		var err error
		if dir, err = os.Getwd(); err != nil {
			return folders{}, err
		}
	}
	for ; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod")) //nolint:gosec // of the caller's own tree
		if err == nil && strings.HasPrefix(string(text), "module github.com/headgate/headgate\n") {
			break
		}
		if dir == filepath.Dir(dir) {
			return folders{}, errors.New("run this inside the repository")
		}
	}
	state := filepath.Join(dir, ".tools", "cluster")
	f := folders{
		Root: dir, Source: filepath.Join(dir, "tools", "cluster"), Bin: filepath.Join(state, "bin"),
		Debian: filepath.Join(state, "debian"), Images: filepath.Join(state, "images"), Node: filepath.Join(state, "node"),
	}
	return f, errors.Join(os.MkdirAll(f.Bin, 0o755), os.MkdirAll(f.Images, 0o755))
}

// path is the PATH with which the node's programs and commands run.
func (f folders) path() string {
	return f.Bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

// kubeconfig is the file that reaches the API server from outside the node.
func (f folders) kubeconfig() string { return filepath.Join(f.Node, "kubeconfig") }
