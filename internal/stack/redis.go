package stack

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// RedisOptions describe one Redis process.
type RedisOptions struct {
	Binary   string   // FindRedis when empty
	Config   []string // lines of redis.conf, after and over the defaults: no persistence, loopback, a free port
	Password string   // of the user this package talks as, when Config sets one
	sentinel bool
	cluster  bool
}

// Redis is a running redis-server.
type Redis struct {
	Addr string // host:port

	o       RedisOptions
	dir     string
	process *Process
	client  *redis.Client
}

const redisStartTries = 5 // another process may take the free port first

// StartRedis starts a redis-server on a free port of the loopback address and waits until it answers. Stop it.
func StartRedis(ctx context.Context, o RedisOptions) (*Redis, error) {
	if o.Binary == "" {
		var err error
		if o.Binary, err = FindRedis(ctx); err != nil {
			return nil, err
		}
	}
	dir, err := tempDir("redis")
	if err != nil {
		return nil, err
	}
	var failed error
	for range redisStartTries {
		port, err := redisPort()
		if err != nil {
			failed = err
			break
		}
		r := &Redis{Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), o: o, dir: dir}
		if failed = r.writeConfig(port); failed != nil {
			break
		}
		r.client = redis.NewClient(&redis.Options{
			Addr: r.Addr, Password: o.Password, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1,
			ContextTimeoutEnabled: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		if failed = r.start(ctx); failed == nil {
			return r, nil
		}
		r.halt()
		r.client.Close()
	}
	return nil, errors.Join(failed, os.RemoveAll(dir))
}

func (r *Redis) writeConfig(port int) error {
	lines := []string{
		"port " + strconv.Itoa(port), "bind 127.0.0.1", "daemonize no", "dir " + r.dir, "save \"\"", "appendonly no",
		"loglevel notice", "tcp-backlog 511",
	}
	if r.o.sentinel {
		lines = []string{"port " + strconv.Itoa(port), "bind 127.0.0.1", "daemonize no", "dir " + r.dir}
	}
	if r.o.cluster {
		lines = append(lines, "cluster-enabled yes", "cluster-config-file nodes.conf", "cluster-node-timeout 2000",
			"cluster-require-full-coverage no")
	}
	text := strings.Join(append(lines, r.o.Config...), "\n") + "\n"
	return os.WriteFile(filepath.Join(r.dir, "redis.conf"), []byte(text), 0o600)
}

func (r *Redis) start(ctx context.Context) error {
	args := []string{filepath.Join(r.dir, "redis.conf")}
	if r.o.sentinel {
		args = append(args, "--sentinel")
	}
	p, err := StartProcess(ProcessOptions{Name: "redis-server " + r.Addr, Path: r.o.Binary, Args: args,
		Log: filepath.Join(r.dir, "log"), Grace: 3 * time.Second})
	if err != nil {
		return err
	}
	r.process = p
	return p.waitReady(ctx, func(ctx context.Context) error { return r.client.Ping(ctx).Err() })
}

// Do sends one command and returns its answer.
func (r *Redis) Do(ctx context.Context, args ...any) (any, error) {
	return r.client.Do(ctx, args...).Result()
}

// Client is a client of this server alone. It belongs to r.
func (r *Redis) Client() *redis.Client { return r.client }

// PID returns the process id of the server.
func (r *Redis) PID() int { return r.process.PID() }

// Port returns the port alone.
func (r *Redis) Port() string {
	_, port, _ := net.SplitHostPort(r.Addr)
	return port
}

// Freeze stops the process where it is (SIGSTOP): connections are accepted by the kernel, nothing is answered.
func (r *Redis) Freeze() error { return r.process.Signal(syscall.SIGSTOP) }

// Thaw lets a frozen process run on.
func (r *Redis) Thaw() error { return r.process.Signal(syscall.SIGCONT) }

// Kill ends the process at once (SIGKILL) and waits for its end.
func (r *Redis) Kill() {
	_ = r.process.Signal(syscall.SIGKILL) // fails when it has ended already
	<-r.process.Done()
}

// Restart starts a process that was killed again, on the same port, with what it had saved, which by default is nothing.
func (r *Redis) Restart(ctx context.Context) error {
	r.halt()
	return r.start(ctx)
}

// Launch is Restart without waiting until it answers.
func (r *Redis) Launch() error {
	r.halt()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.start(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Dir holds the server's files.
func (r *Redis) Dir() string { return r.dir }

func (r *Redis) halt() {
	if r.process != nil {
		_ = r.process.Signal(syscall.SIGCONT) // a frozen process would not see SIGTERM
		r.process.Stop()
	}
}

// Stop ends the server and removes its files. It is idempotent.
func (r *Redis) Stop() {
	r.client.Close()
	r.halt()
	os.RemoveAll(r.dir)
}
