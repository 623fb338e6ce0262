package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxFile bounds the size of a configuration file in bytes.
const maxFile = 4 << 20

// Load builds the configuration from the defaults, the file and the environment ("NAME=value", as os.Environ gives it).
// An empty path takes the one in HEADGATE_CONFIG; without either there is no file. The error, an *Error, lists every
// fault there is.
func Load(path string, environ []string) (*Config, error) {
	c, _, err := load(path, environ)
	return c, err
}

// digest identifies what a file held; the zero value stands for no or an unreadable file.
type digest [sha256.Size]byte

func load(path string, environ []string) (*Config, digest, error) {
	path = filePath(path, environ)
	if path == "" {
		c, err := parse("", nil, environ)
		return c, digest{}, err
	}
	data, err := readFile(path)
	if err != nil {
		return nil, digest{}, &Error{File: path, Faults: []Fault{{Message: err.Error()}}}
	}
	source := sha256.Sum256(data)
	c, err := parse(path, data, environ)
	if err != nil {
		return nil, source, err
	}
	c.source = source
	return c, source, nil
}

func filePath(path string, environ []string) string {
	if path != "" {
		return path
	}
	return environment(environ)[EnvFile]
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading the file: %w", err)
	}
	if len(data) > maxFile {
		return nil, errors.New("the file is larger than 4MiB")
	}
	return data, nil
}

// parse applies the layers in order of precedence. A file without a name is no file.
func parse(name string, data []byte, environ []string) (*Config, error) {
	c, r, env := Default(), newReport(), environment(environ)
	applyClusterEnv(r, c, env)
	whole := name == "" || decodeFile(r, c, data)
	applyEnv(r, c, env)
	checkNames(r, env)
	c.normalize()
	if whole {
		c.check(r)
	}
	if err := r.err(name); err != nil {
		return nil, err
	}
	c.Notes = r.notes
	return c, nil
}

// Validate checks what concerns several values at once; Load has done so already. Ranges and notations of single values
// are checked where they are read.
func (c *Config) Validate() error {
	r := newReport()
	c.check(r)
	return r.err("")
}
