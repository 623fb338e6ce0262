package lease_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/certs"
	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

// authority is a CA of the test, and the file of its certificate.
type authority struct {
	*certs.Authority
	file string
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	a, err := certs.New()
	if err != nil {
		t.Fatal(err)
	}
	return authority{a, file(t, "ca.pem", string(a.PEM))}
}

// issue signs a certificate for DNS names and addresses, and returns the files of it and its key.
func (a authority) issue(t *testing.T, names ...string) (certFile, keyFile string) {
	t.Helper()
	cert, key, err := a.Issue(names...)
	if err != nil {
		t.Fatal(err)
	}
	return file(t, "cert.pem", string(cert)), file(t, "key.pem", string(key))
}

// server is the side of a TLS server that asks for client certificates of the CA.
func (a authority) server(t *testing.T, names ...string) *tls.Config {
	t.Helper()
	certFile, keyFile := a.issue(t, names...)
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(a.Cert)
	return &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients, MinVersion: tls.VersionTLS12}
}

// terminate starts a TLS terminator before a Redis.
func (a authority) terminate(t *testing.T, target string, names ...string) *stack.Relay {
	t.Helper()
	r, err := stack.StartRelay(stack.RelayOptions{Target: target, TLS: a.server(t, names...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

func TestTransportSecurity(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	ours, foreign := newAuthority(t), newAuthority(t)
	byAddress := ours.terminate(t, server.Addr, "127.0.0.1")
	byName := ours.terminate(t, server.Addr, "redis.example")
	certFile, keyFile := ours.issue(t, "sidecar")
	foreignCert, foreignKey := foreign.issue(t, "sidecar")
	for name, c := range map[string]struct {
		addr string
		tls  lease.TLSSettings
		want string // part of the error; empty: works
	}{
		"own CA, client certificate": {byAddress.Addr, lease.TLSSettings{CAFile: ours.file, CertFile: certFile, KeyFile: keyFile}, ""},
		"server name overridden":     {byName.Addr, lease.TLSSettings{CAFile: ours.file, CertFile: certFile, KeyFile: keyFile, ServerName: "redis.example"}, ""},
		"certificate for a name, dialled by address": {byName.Addr, lease.TLSSettings{CAFile: ours.file, CertFile: certFile, KeyFile: keyFile},
			"cannot validate certificate for 127.0.0.1"},
		"another server name":        {byName.Addr, lease.TLSSettings{CAFile: ours.file, CertFile: certFile, KeyFile: keyFile, ServerName: "other.example"}, "other.example"},
		"foreign CA":                 {byAddress.Addr, lease.TLSSettings{CAFile: foreign.file, CertFile: certFile, KeyFile: keyFile}, "unknown authority"},
		"the system's CAs":           {byAddress.Addr, lease.TLSSettings{CertFile: certFile, KeyFile: keyFile}, "unknown authority"},
		"no client certificate":      {byAddress.Addr, lease.TLSSettings{CAFile: ours.file}, "certificate required"},
		"foreign client certificate": {byAddress.Addr, lease.TLSSettings{CAFile: ours.file, CertFile: foreignCert, KeyFile: foreignKey}, "tls"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := onRedis(settings("acct-1"), c.addr)
			s.Store.Redis.KeyPrefix = strings.ReplaceAll(t.Name(), " ", "-")
			s.Store.Redis.TLS = c.tls
			s.Store.Redis.TLS.Enabled = true
			svc := newService(t, s)
			_, r := svc.Acquire(within(t, 2*patience), ask(t, svc, 1, teamA, 0), "m")
			if c.want == "" {
				expect(t, "acquire", r, "")
				return
			}
			expect(t, "acquire", r, lease.ServiceUnavailable)
			eventually(t, patience, "an error that says why: "+c.want, func() bool {
				return strings.Contains(svc.State().Pools[pool].Error, c.want)
			})
		})
	}
}

// TestCertificatesAreReadAgain: the server and its clients move to another CA while the process runs, as Secrets that are mounted do: the
// next connection uses the new CA and the new client certificate.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	first, second := newAuthority(t), newAuthority(t)
	var serves atomic.Pointer[tls.Config]
	serves.Store(first.server(t, "127.0.0.1"))
	front, err := stack.StartRelay(stack.RelayOptions{Target: server.Addr, TLS: &tls.Config{
		MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return serves.Load(), nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(front.Stop)
	s := onRedis(settings("acct-1", "acct-2"), front.Addr)
	s.Store.Redis.TLS = lease.TLSSettings{Enabled: true, CAFile: first.file}
	s.Store.Redis.TLS.CertFile, s.Store.Redis.TLS.KeyFile = first.issue(t, "sidecar")
	svc := newService(t, s)
	l := acquire(t, svc, 1, teamA)

	replace := func(to, from string) {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cert, key := second.issue(t, "sidecar")
	serves.Store(second.server(t, "127.0.0.1"))
	replace(s.Store.Redis.TLS.CAFile, second.file)
	replace(s.Store.Redis.TLS.CertFile, cert)
	replace(s.Store.Redis.TLS.KeyFile, key)
	ctx := within(t, 2*patience)
	if _, err := server.Do(ctx, "CLIENT", "KILL", "TYPE", "normal"); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "a renewal under the new CA", func() bool {
		_, r := svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation))
		return r == nil
	})
	// and a CA file that is none is an error that says so, until it is one
	if err := os.WriteFile(s.Store.Redis.TLS.CAFile, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Do(ctx, "CLIENT", "KILL", "TYPE", "normal"); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "an error about the CA file", func() bool {
		_, _ = svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation))
		return strings.Contains(svc.State().Pools[pool].Error, "holds no certificate")
	})
	replace(s.Store.Redis.TLS.CAFile, second.file)
	eventually(t, patience, "a renewal with the CA file back", func() bool {
		_, r := svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation))
		return r == nil
	})
}

// TestCredentialsAreReadAgain: a rotated password is used for the next connection.
func TestCredentialsAreReadAgain(t *testing.T) {
	t.Parallel()
	rights := "~headgate:* -@all +@connection +eval +evalsha +select +time +set +del +exists +hget +hmget +hset +hdel +hgetall +hscan +pexpire +pttl +xadd +xrevrange +info"
	server, err := stack.StartRedis(within(t, 2*patience), stack.RedisOptions{Password: "admin-password", Config: []string{
		"user default on >admin-password ~* &* +@all", "user leases on >first-password " + rights,
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	ctx := within(t, 2*patience)
	s := onRedis(settings("acct-1", "acct-2", "acct-3"), server.Addr)
	s.Store.Redis.Username, s.Store.Redis.DB = "leases", 1
	s.Store.Redis.PasswordFile = file(t, "password", "first-password\n")
	var log syncBuffer
	svc := newLoggedService(t, s, &log, lease.Observer{})
	// Given a user with the rights that the documentation names, everything works
	l := acquire(t, svc, 1, teamA)
	a := ask(t, svc, 1, teamA, l.Generation)
	for what, call := range map[string]func() *lease.Refusal{
		"check":    func() *lease.Refusal { _, r := svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation)); return r },
		"renew":    func() *lease.Refusal { _, r := svc.Renew(ctx, a); return r },
		"move":     func() *lease.Refusal { _, r := move(t, svc, 1, teamA, l); return r },
		"cooldown": func() *lease.Refusal { return svc.SetCooldown(ctx, pool, "acct-1", time.Millisecond) },
		"unmanaged": func() *lease.Refusal {
			time.Sleep(5 * time.Millisecond)
			_, r := svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool})
			return r
		},
		"release": func() *lease.Refusal { _, r := svc.Release(ctx, a, lease.OwnerExit); return r },
	} {
		if r := call(); r != nil && what != "check" && what != "renew" && what != "move" {
			t.Errorf("%s: %s", what, r.Reason)
		}
	}
	svc.SweepNow(ctx)
	if _, err := svc.List(ctx, pool, 10); err != nil {
		t.Errorf("list: %v", err)
	}
	// when the password changes, and every connection is closed
	if _, err := server.Do(ctx, "ACL", "SETUSER", "leases", "resetpass", ">second-password"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Store.Redis.PasswordFile, []byte("second-password"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Do(ctx, "CLIENT", "KILL", "USER", "leases"); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "a lease with the new password", func() bool {
		_, r := svc.Acquire(ctx, ask(t, svc, 2, teamA, 0), "m")
		return r == nil
	})
	// and a wrong one is an error that does not show it
	if err := os.WriteFile(s.Store.Redis.PasswordFile, []byte("wrong-password"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Do(ctx, "CLIENT", "KILL", "USER", "leases"); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "an error about the password", func() bool {
		_, _ = svc.Renew(ctx, a)
		return strings.Contains(svc.State().Pools[pool].Error, "WRONGPASS")
	})
	for _, secret := range []string{"first-password", "second-password", "wrong-password"} {
		if strings.Contains(log.String(), secret) || strings.Contains(svc.State().Pools[pool].Error, secret) {
			t.Errorf("%q is shown:\n%s\n%+v", secret, log.String(), svc.State())
		}
	}
}

// TestMissingRightIsAnErrorNotAnAnswer: a user who may not read a key must not make leases look absent.
func TestMissingRightIsAnErrorNotAnAnswer(t *testing.T) {
	t.Parallel()
	server, err := stack.StartRedis(within(t, 2*patience), stack.RedisOptions{Password: "admin", Config: []string{
		"user default on >admin ~* &* +@all", "user leases on >p ~headgate:* -@all +@connection +eval +evalsha +time +hdel +hmget",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	s := onRedis(settings("acct-1"), server.Addr)
	s.Store.Redis.Username, s.Store.Redis.PasswordFile = "leases", file(t, "password", "p")
	svc := newService(t, s)
	ctx := context.Background()
	_, r := svc.Check(ctx, fence(t, svc, 1, teamA, 1))
	expect(t, "check without the right to HGET", r, lease.ServiceUnavailable)
	_, r = svc.Renew(ctx, ask(t, svc, 1, teamA, 1))
	expect(t, "renewal without the right to HGET", r, lease.ServiceUnavailable)
}
