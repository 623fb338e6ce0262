package manifests

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

// TestRedisOfTheOverlay starts a Redis with the overlay's settings and the user that the documentation makes, and takes a
// lease through all its actions as the sidecar would.
func TestRedisOfTheOverlay(t *testing.T) {
	const secret = "for-this-test-only"
	page, err := os.ReadFile(root + "docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	user := regexp.MustCompile(`(?m)^user headgate on >\$password .*[^"\n]`).FindString(string(page))
	if user == "" {
		t.Fatal("docs/kubernetes.md makes no user headgate")
	}
	// The documented default user is off; here it is the one that starts and stops the Redis.
	acl := "user default on >" + secret + " ~* +@all\n" + strings.Replace(user, "$password", secret, 1) + "\n"
	folder := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	users, password := write("users.acl", acl), write("password", secret)
	conf, err := os.ReadFile(k8s + "overlays/gateway-with-redis/redis.conf")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(conf)) {
		switch name, _, _ := strings.Cut(strings.TrimSpace(line), " "); name {
		case "port", "dir", "bind", "#", "": // the places of the test
		case "aclfile":
			lines = append(lines, "aclfile "+users)
		default:
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	binary, err := stack.Finder{Root: filepath.Join("..", "..")}.Redis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	redis, err := stack.StartRedis(t.Context(), stack.RedisOptions{Binary: binary, Config: lines, Password: secret})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Stop)

	c := load(t, "overlays/gateway-with-redis/headgate.yaml")
	c.Leases.Store.Redis.Addrs, c.Leases.Store.Redis.PasswordFile = []string{redis.Addr}, password
	c.Leases.Store.Redis.CallTimeout = 5 * time.Second // for a busy machine with a slow disk
	var log logged
	service, err := lease.New(c.Leases, c.Principals, lease.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	owner, refusal := lease.ParseOwner("vlo_" + strings.Repeat("a", 43))
	if refusal != nil {
		t.Fatalf("owner: %s", refusal.Reason)
	}
	ask := lease.Ask{Pool: "chat", Owner: owner, Identity: lease.Identity{Principal: "team-a", Managed: true, Connections: []string{"acct-1", "acct-2"}}}
	held, refusal := service.Acquire(t.Context(), ask, "any")
	if refusal != nil {
		t.Fatalf("acquire: %s", refusal.Reason)
	}
	ask.Generation = held.Generation
	for _, step := range []struct {
		name string
		do   func() *lease.Refusal
	}{
		{"renew", func() *lease.Refusal { _, r := service.Renew(t.Context(), ask); return r }},
		{"cooldown", func() *lease.Refusal { return service.SetCooldown(t.Context(), "chat", "acct-2", time.Minute) }},
		{"release", func() *lease.Refusal { _, r := service.Release(t.Context(), ask, lease.OwnerExit); return r }},
	} {
		if refusal := step.do(); refusal != nil {
			t.Errorf("%s: %s", step.name, refusal.Reason)
		}
	}
	if err := service.Close(); err != nil {
		t.Error(err)
	}
	if strings.Contains(log.String(), "NOPERM") || strings.Contains(log.String(), "evict") {
		t.Errorf("the user may not do what the sidecar does, or the store evicts:\n%s", log.String())
	}
}

// logged keeps a log for a look at it later; several goroutines write it.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
