package lease

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// observedLog is what a store reports to.
type observedLog struct {
	log      *slog.Logger
	observer Observer
}

// openStore makes the store of the settings. It does not connect: a store that is not there yet is a degraded start, not
// an error. Unreadable files are errors.
func openStore(s StoreSettings, out observedLog) (*store, error) {
	sc, err := loadScripts()
	if err != nil {
		return nil, err
	}
	if len(s.Redis.Addrs) == 0 {
		return openEmbedded(s, sc, out)
	}
	client, err := NewRedisClient(s.Redis)
	if err != nil {
		return nil, fmt.Errorf("leases.store.redis: %w", err)
	}
	st := newStore(s.Redis.Kind, &remote{client}, sc, s.Redis.CallTimeout, out)
	st.replicas, st.slots = s.Redis.WaitReplicas, make(chan struct{}, s.Redis.PoolSize)
	return st, nil
}

// NewRedisClient makes the client of a real Redis. It does not connect; unreadable files are errors.
func NewRedisClient(s RedisSettings) (redis.UniversalClient, error) {
	o, err := clientOptions(s)
	if err != nil {
		return nil, err
	}
	switch s.Kind {
	case "sentinel":
		return redis.NewFailoverClient(o.Failover()), nil
	case "cluster":
		c := o.Cluster()
		// Policies would fetch the command table first, under a lock and without the caller's deadline.
		c.DisableRoutingPolicies = true
		return redis.NewClusterClient(c), nil
	default:
		return redis.NewClient(o.Simple()), nil
	}
}

func clientOptions(s RedisSettings) (*redis.UniversalOptions, error) {
	password, err := secretFile(s.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("passwordFile: %w", err)
	}
	sentinelPassword, err := secretFile(s.SentinelPasswordFile)
	if err != nil {
		return nil, fmt.Errorf("sentinelPasswordFile: %w", err)
	}
	o := &redis.UniversalOptions{
		Addrs: s.Addrs, DB: s.DB, MasterName: s.MasterName,
		Username: s.Username, Password: password,
		SentinelUsername: s.SentinelUsername, SentinelPassword: sentinelPassword,
		Protocol: 2, DisableIdentity: true, // fewer commands per connection, fewer permissions
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		// Without it go-redis reads on until ReadTimeout, whatever the caller's deadline.
		ContextTimeoutEnabled: true,
		// Bounds for what runs without a caller, such as reloading the Cluster's topology; calls have deadlines of their own,
		// which these must not undercut.
		ReadTimeout: max(abandonTimeout, 4*s.CallTimeout), WriteTimeout: max(abandonTimeout, 4*s.CallTimeout),
		DialTimeout: s.DialTimeout, DialerRetries: 1,
		PoolSize: s.PoolSize, MaxActiveConns: s.PoolSize, PoolTimeout: s.CallTimeout,
		MaxRetries: -1, MaxRedirects: 4, // the store repeats calls itself
	}
	if s.TLS.Enabled {
		if _, err := newTLS(s.TLS); err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		// Its files are read again for every connection, so that rotated certificates are picked up.
		o.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := newTLS(s.TLS)
			if err != nil {
				return nil, fmt.Errorf("tls: %w", err)
			}
			d := tls.Dialer{NetDialer: &net.Dialer{Timeout: s.DialTimeout}, Config: c}
			return d.DialContext(ctx, network, address)
		}
	}
	if s.PasswordFile != "" {
		// Read again for every connection, so that a rotated password is picked up.
		user := s.Username
		file := s.PasswordFile
		o.CredentialsProviderContext = func(context.Context) (string, string, error) {
			password, err := secretFile(file)
			return user, password, err
		}
	}
	return o, nil
}

// secretFile reads a secret, without the line end editors add. No file is no secret.
func secretFile(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(content), "\r\n"), nil
}

// newTLS reads the files of the settings. The server name is the dialled host's unless one is set.
func newTLS(s TLSSettings) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.ServerName}
	if s.CAFile != "" {
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("caFile: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("caFile: holds no certificate")
		}
	}
	if s.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("certFile, keyFile: %w", err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}
