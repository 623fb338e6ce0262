package stack

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// EnvoyOptions say what Envoy to start.
type EnvoyOptions struct {
	Binary      string   // empty is FindEnvoy
	Bootstrap   []byte   // YAML or JSON
	LogLevel    string   // of Envoy's own log; empty is warning
	Concurrency int      // worker threads; 0 is 2
	AccessLog   *os.File // gets Envoy's standard output; nil puts it into the log
}

// Envoy is a running Envoy.
type Envoy struct {
	*Process
	Address string // of the first listener, host:port
	Admin   string // of the admin interface, host:port

	dir   string
	admin *http.Client
}

// StartEnvoy starts an Envoy and waits until it serves, at most until ctx ends. Stop it in any case.
func StartEnvoy(ctx context.Context, o EnvoyOptions) (*Envoy, error) {
	if o.Binary == "" {
		found, err := FindEnvoy(ctx)
		if err != nil {
			return nil, err
		}
		o.Binary = found
	}
	dir, err := tempDir("envoy")
	if err != nil {
		return nil, err
	}
	e := &Envoy{dir: dir, admin: &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}}
	if err := e.start(ctx, o); err != nil {
		e.Stop()
		return nil, err
	}
	return e, nil
}

func (e *Envoy) start(ctx context.Context, o EnvoyOptions) error {
	file := filepath.Join(e.dir, "envoy.yaml")
	if err := os.WriteFile(file, o.Bootstrap, 0o600); err != nil {
		return fmt.Errorf("write Envoy configuration: %w", err)
	}
	adminFile := filepath.Join(e.dir, "admin")
	level, threads := o.LogLevel, o.Concurrency
	if level == "" {
		level = "warning"
	}
	if threads == 0 {
		threads = 2
	}
	process, err := StartProcess(ProcessOptions{
		Name: "Envoy", Path: o.Binary, Log: filepath.Join(e.dir, "envoy.log"), Stdout: o.AccessLog,
		Args: []string{"-c", file, "-l", level, "--concurrency", strconv.Itoa(threads),
			"--disable-hot-restart", "--admin-address-path", adminFile, "--file-flush-interval-msec", "100"},
	})
	if err != nil {
		return err
	}
	e.Process = process
	return process.waitReady(ctx, func(ctx context.Context) error {
		admin, err := os.ReadFile(adminFile)
		if err != nil {
			return err
		}
		e.Admin = strings.TrimSpace(string(admin))
		if _, err := e.get(ctx, "/ready"); err != nil {
			return err
		}
		e.Address, err = e.listenAddress(ctx)
		return err
	})
}

// URL returns the base URL of the first listener.
func (e *Envoy) URL() string { return "http://" + e.Address }

// Stop ends Envoy and removes its files.
func (e *Envoy) Stop() {
	if e.Process != nil {
		e.Process.Stop()
	}
	e.admin.CloseIdleConnections()
	_ = os.RemoveAll(e.dir) // leftovers in a temporary directory are not worth failing for
}

// Stats returns the counters and gauges whose names contain the given text, all of them when it is empty.
func (e *Envoy) Stats(ctx context.Context, containing string) (map[string]int64, error) {
	text, err := e.get(ctx, "/stats")
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		name, value, found := strings.Cut(lines.Text(), ": ")
		if !found || !strings.Contains(name, containing) {
			continue
		}
		if n, err := strconv.ParseInt(value, 10, 64); err == nil { // histograms and texts are not numbers
			all[name] = n
		}
	}
	return all, nil
}

// ProcessorStat returns a counter of the ext_proc filter, such as "streams_failed".
func (e *Envoy) ProcessorStat(ctx context.Context, name string) (int64, error) {
	all, err := e.Stats(ctx, ".ext_proc.")
	if err != nil {
		return 0, err
	}
	for full, value := range all {
		if strings.HasSuffix(full, ".ext_proc."+name) {
			return value, nil
		}
	}
	return 0, fmt.Errorf("Envoy has no counter ext_proc.%s", name)
}

// listenAddress asks for the port that the first listener got.
func (e *Envoy) listenAddress(ctx context.Context) (string, error) {
	text, err := e.get(ctx, "/listeners?format=json")
	if err != nil {
		return "", err
	}
	var listeners struct {
		Statuses []struct {
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    uint16 `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal([]byte(text), &listeners); err != nil {
		return "", fmt.Errorf("read Envoy's listeners: %w", err)
	}
	if len(listeners.Statuses) == 0 {
		return "", errors.New("Envoy listens nowhere yet")
	}
	at := listeners.Statuses[0].Local.Socket
	return net.JoinHostPort(at.Address, strconv.Itoa(int(at.Port))), nil
}

// get asks the admin interface.
func (e *Envoy) get(ctx context.Context, path string) (string, error) {
	return httpGet(ctx, e.admin, (&url.URL{Scheme: "http", Host: e.Admin}).String()+path)
}

// httpGet returns the body of a 200; any other status is an error.
func httpGet(ctx context.Context, c *http.Client, address string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	answer, err := c.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", address, err)
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: status %d: %s", address, answer.StatusCode, lastLines(body, 5))
	}
	return string(body), nil
}
