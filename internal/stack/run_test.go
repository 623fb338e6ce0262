package stack

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/config"
)

// sidecarRole is the variable that makes the test binary play a sidecar.
const sidecarRole = "STACK_TEST_SIDECAR"

func TestMain(m *testing.M) {
	if role := os.Getenv(sidecarRole); role != "" {
		os.Exit(playSidecar(role, os.Args))
	}
	os.Exit(m.Run())
}

// playSidecar is a sidecar that is ready at once and dies soon (role dies), or never gets ready (role fails).
func playSidecar(role string, args []string) int {
	if role == "fails" {
		fmt.Fprintln(os.Stderr, "cannot serve: boom at start")
		return 3
	}
	c, err := config.Load(args[len(args)-1], os.Environ())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		_ = http.ListenAndServe(c.Listen.Admin, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	}()
	time.Sleep(2 * time.Second)
	fmt.Fprintln(os.Stderr, "boom in mid-life")
	return 3
}

// repository makes a root that has what Run reads, so that its lock and its tools are the test's own.
func repository(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"internal/stack", "deploy/envoy"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "internal/stack/demo.yaml"), DemoConfig(), 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

// runOptions are for free ports and a sidecar that plays the role.
func runOptions(t *testing.T, role string) RunOptions {
	t.Helper()
	ports, err := FreePorts(6)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	envoy, err := FindEnvoy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	return RunOptions{
		Root: repository(t), Stdout: out, Stderr: &bytes.Buffer{}, Sidecar: self, Listen: ports[0], Admin: ports[1], Upstream: ports[2],
		Environ: []string{sidecarRole + "=" + role, "ENVOY_BIN=" + envoy, "PATH=" + os.Getenv("PATH"),
			"HEADGATE_LISTEN_GRPC=" + ports[3], "HEADGATE_LISTEN_ADMIN=" + ports[4], "HEADGATE_LISTEN_API=" + ports[5]},
	}
}

func TestRunSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		role  string
		spoil func(t *testing.T, o *RunOptions)
		want  []string
	}{
		"every taken port is named with who wants it": {
			spoil: func(t *testing.T, o *RunOptions) {
				for _, address := range []string{o.Listen, o.Upstream} {
					l, err := net.Listen("tcp", address)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { l.Close() })
				}
			},
			want: []string{"wanted by Envoy, is taken", "wanted by the demo upstream, is taken"},
		},
		"another run holds the lock": {
			spoil: func(t *testing.T, o *RunOptions) {
				tools := filepath.Join(o.Root, ".tools")
				if err := os.MkdirAll(tools, 0o755); err != nil {
					t.Fatal(err)
				}
				unlock, err := tryLockFile(filepath.Join(tools, "run-"+strings.ReplaceAll(o.Listen, ":", "-")+".lock"))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(unlock)
			},
			want: []string{"another `make run` is running"},
		},
		"ENVOY_BIN names nothing": {
			spoil: func(_ *testing.T, o *RunOptions) {
				o.Environ = append([]string{"ENVOY_BIN=/nowhere/envoy"}, o.Environ...)
			},
			want: []string{"ENVOY_BIN=/nowhere/envoy is not a program"},
		},
		"neither Envoy nor Python": {
			spoil: func(t *testing.T, o *RunOptions) {
				o.Environ = append([]string{"ENVOY_BIN=", "PATH=" + t.TempDir()}, o.Environ...)
			},
			want: []string{"no Envoy", "apt-get install python3", "set ENVOY_BIN"},
		},
		"CONFIG names no file": {
			spoil: func(_ *testing.T, o *RunOptions) {
				o.Environ = append([]string{"CONFIG=/nowhere/config.yaml"}, o.Environ...)
			},
			want: []string{"configuration /nowhere/config.yaml"},
		},
		"the environment sets nonsense": {
			spoil: func(_ *testing.T, o *RunOptions) {
				o.Environ = append(o.Environ, "OMNIROUTE_CHAT_HARD_MAX_BODY_BYTES=lots")
			},
			want: []string{"OMNIROUTE_CHAT_HARD_MAX_BODY_BYTES"},
		},
		"the sidecar fails at its start": {role: "fails", want: []string{"sidecar: exit status 3", "boom at start"}},
		"the sidecar dies later":         {role: "dies", want: []string{"sidecar: exit status 3", "boom in mid-life"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := runOptions(t, tc.role)
			if tc.spoil != nil {
				tc.spoil(t, &o)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := Run(ctx, o)
			if err == nil {
				t.Fatalf("Run ended without an error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Run = %v\nwant it to contain %q", err, want)
				}
			}
		})
	}
}

func TestRunLeavesNothing(t *testing.T) {
	t.Parallel()
	o := runOptions(t, "dies")
	if err := Run(t.Context(), o); err == nil {
		t.Fatal("Run ended without an error although its sidecar died")
	}
	if err := checkFree([]wanted{{o.Listen, "the test"}, {o.Admin, "the test"}, {o.Upstream, "the test"}}); err != nil {
		t.Errorf("after Run: %v", err)
	}
}

// TestRunGivesAUsersFileTheDemosPort shows that CONFIG needs no listen.grpc, and that one that has it keeps it.
func TestRunGivesAUsersFileTheDemosPort(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"without listen.grpc": {"bytes: {hardMaxBody: 1MiB}", "127.0.0.1:9002"},
		"with listen.grpc":    {"listen: {grpc: 127.0.0.1:7777}", "127.0.0.1:7777"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			d := &demo{o: RunOptions{Environ: []string{"CONFIG=" + file}}}
			if err := d.loadConfig(); err != nil {
				t.Fatal(err)
			}
			if got := d.config.Listen.GRPC; got != tc.want {
				t.Errorf("listen.grpc = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestTourShowsLeasesOnlyWhereTheyWork(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		load func() (*config.Config, error)
		want bool
	}{
		"demo":     {func() (*config.Config, error) { return config.Load("demo.yaml", nil) }, true},
		"defaults": {func() (*config.Config, error) { return config.Default(), nil }, false},
	} {
		c, err := tc.load()
		if err != nil {
			t.Fatal(err)
		}
		text := (&demo{config: c}).tour()
		if got := strings.Contains(text, "session-leases -H"); got != tc.want {
			t.Errorf("%s: lease lines shown %v, want %v", name, got, tc.want)
		}
		if !strings.Contains(text, "head -c 52428801 ") {
			t.Errorf("%s: the tour does not send one byte more than the limit of 50 MiB:\n%s", name, text)
		}
	}
}
