package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// vulnerabilities looks at what the binary calls, built by the toolchain that go.mod names: releases are.
func vulnerabilities(ctx context.Context, root string) ([]row, error) {
	db, err := database(ctx)
	if err != nil {
		return nil, err
	}
	toolchain, err := toolchainOf(ctx, root)
	if err != nil {
		return nil, err
	}
	check, err := tool(ctx, "govulncheck")
	if err != nil {
		return nil, err
	}
	var env []string
	if toolchain != "" {
		env = []string{"GOTOOLCHAIN=" + toolchain}
	}
	out, err := run(ctx, root, env, check, "-format", "json", "-db", db, "./cmd/extproc")
	if err != nil {
		return nil, err
	}
	return findings(bytes.NewReader(out))
}

// database returns the address of the database.
func database(ctx context.Context) (string, error) {
	const public = "https://vuln.go.dev"
	if named := os.Getenv("GOVULNDB"); named != "" {
		return named, nil
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodHead, public+"/index/db.json", nil)
	if err != nil {
		return "", err
	}
	if in, err := (&http.Client{Timeout: 10 * time.Second}).Do(q); err == nil {
		_ = in.Body.Close()
		if in.StatusCode == http.StatusOK {
			return public, nil
		}
	}
	out, err := run(ctx, ".", nil, "go", "mod", "download", "-json", "golang.org/x/vulndb@latest")
	if err != nil {
		return "", fmt.Errorf("%s cannot be reached, nor its module: %w", public, err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return "", err
	}
	return "file://" + filepath.ToSlash(filepath.Join(module.Dir, "data", "osv")), nil
}

// toolchainOf is the toolchain in go.mod, empty where it names none.
func toolchainOf(ctx context.Context, root string) (string, error) {
	out, err := run(ctx, root, nil, "go", "mod", "edit", "-json")
	if err != nil {
		return "", err
	}
	var file struct{ Toolchain string }
	err = json.Unmarshal(out, &file)
	return file.Toolchain, err
}

// message is what govulncheck prints, as far as it is read here.
type message struct {
	Config *struct {
		GoVersion string `json:"go_version"`
	}
	OSV     *struct{ ID, Summary string }
	Finding *struct {
		OSV          string
		FixedVersion string `json:"fixed_version"`
		Trace        []struct{ Module, Version, Function string }
	}
}

// findings reads govulncheck's messages: a line for each vulnerability in what is called, and one that counts the others.
func findings(in io.Reader) ([]row, error) {
	summaries, called, others := map[string]string{}, map[string]row{}, map[string]bool{}
	version := ""
	for d := json.NewDecoder(in); ; {
		var m message
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read govulncheck's output: %w", err)
		}
		switch {
		case m.Config != nil:
			version = m.Config.GoVersion
		case m.OSV != nil:
			summaries[m.OSV.ID] = m.OSV.Summary
		case m.Finding != nil && len(m.Finding.Trace) > 0 && m.Finding.Trace[0].Function != "":
			at := m.Finding.Trace[0]
			called[m.Finding.OSV] = row{m.Finding.OSV, at.Module + "@" + at.Version, "fixed in " + m.Finding.FixedVersion, true}
		case m.Finding != nil:
			others[m.Finding.OSV] = true
		}
	}
	if version == "" {
		return nil, errors.New("govulncheck says nothing of what it looked at")
	}
	var rows []row
	for id, r := range called {
		r.finding += ": " + summaries[id]
		rows = append(rows, r)
		delete(others, id)
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.what, b.what) })
	return append(rows, row{"vulnerabilities", version, fmt.Sprintf("%d in what is called, %d in what is not", len(called), len(others)), len(called) > 0}), nil
}
