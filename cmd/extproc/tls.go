package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/headgate/headgate/pkg/config"
)

// How often files are read again, and faults are logged, at most: whoever can connect can have both done.
const (
	rereadInterval = time.Second
	faultInterval  = 10 * time.Second
)

// certificates are the files of a listener's TLS settings. They are read again as connections begin, so that rotated ones are
// picked up; what cannot be read, such as a certificate whose key has not been written yet, leaves the last good ones in force.
type certificates struct {
	path     string // of the settings, for errors
	settings config.ServerTLS
	protocol string // what is spoken, in ALPN's terms
	log      *slog.Logger

	mu      sync.Mutex
	current *tls.Config
	read    time.Time
	fault   string // of the last reading
}

// serverTLS reads the files of a listener's settings and returns what its server needs. path is that of the settings.
func serverTLS(path string, s config.ServerTLS, protocol string, log *slog.Logger) (*tls.Config, error) {
	c := &certificates{path: path, settings: s, protocol: protocol, log: log, read: time.Now()}
	var err error
	if c.current, err = c.load(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{protocol},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return c.latest(), nil
		},
	}, nil
}

// latest returns what the files say, as of a second ago at most.
func (c *certificates) latest() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.read) < rereadInterval {
		return c.current
	}
	c.read = time.Now()
	next, err := c.load()
	if err != nil {
		if err.Error() != c.fault {
			c.log.Warn("certificates cannot be read: the last ones stay in force", "error", err)
		}
		c.fault = err.Error()
		return c.current
	}
	c.fault = ""
	if was, is := c.current.Certificates[0].Leaf, next.Certificates[0].Leaf; !was.Equal(is) {
		c.log.Info("certificate replaced", "listener", c.path, "not_after", is.NotAfter)
	}
	c.current = next
	return next
}

// load reads the files.
func (c *certificates) load() (*tls.Config, error) {
	certificate, err := os.ReadFile(c.settings.CertFile)
	if err != nil {
		return nil, fmt.Errorf("%s.certFile: %w", c.path, err)
	}
	key, err := os.ReadFile(c.settings.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("%s.keyFile: %w", c.path, err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("%s.certFile, keyFile: %w", c.path, err)
	}
	t := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{c.protocol}, Certificates: []tls.Certificate{pair},
		SessionTicketsDisabled: true, // a client shows its certificate whenever it connects
	}
	if c.settings.ClientCAFile == "" {
		return t, nil
	}
	authorities, err := os.ReadFile(c.settings.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("%s.clientCAFile: %w", c.path, err)
	}
	t.ClientCAs, t.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !t.ClientCAs.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("%s.clientCAFile: %s holds no certificate", c.path, c.settings.ClientCAFile)
	}
	t.VerifyConnection = c.verifyName
	return t, nil
}

// verifyName refuses a client of the CA whose certificate has none of the names.
func (c *certificates) verifyName(state tls.ConnectionState) error {
	if len(c.settings.ClientNames) == 0 {
		return nil
	}
	client := state.PeerCertificates[0] // verified
	for _, name := range c.settings.ClientNames {
		if slices.ContainsFunc(client.DNSNames, func(n string) bool { return strings.EqualFold(n, name) }) {
			return nil
		}
		for _, u := range client.URIs {
			if u.String() == name {
				return nil
			}
		}
	}
	return errors.New("the client's certificate has none of the names in " + c.path + ".clientNames")
}

// loggedHandshakes logs why clients are refused, which gRPC keeps to itself.
type loggedHandshakes struct {
	credentials.TransportCredentials
	faults *faultLog
}

func grpcCredentials(t *tls.Config, log *slog.Logger) credentials.TransportCredentials {
	return loggedHandshakes{credentials.NewTLS(t), &faultLog{log: log, listener: "listen.grpc"}}
}

// ServerHandshake is that of the credentials.
func (c loggedHandshakes) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		c.faults.note(err)
	}
	return conn, info, err
}

// Clone keeps the log.
func (c loggedHandshakes) Clone() credentials.TransportCredentials {
	return loggedHandshakes{c.TransportCredentials.Clone(), c.faults}
}

// faultLog logs that a handshake failed, now and then.
type faultLog struct {
	log      *slog.Logger
	listener string
	mu       sync.Mutex
	last     time.Time
}

func (f *faultLog) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.last) >= faultInterval {
		f.last = time.Now()
		f.log.Warn("TLS handshake on "+f.listener+" failed", "error", err)
	}
}

// serverFaults is where an HTTP server says what went wrong.
type serverFaults struct {
	handshakes *faultLog
	others     io.Writer
}

// Write takes one line.
func (s serverFaults) Write(line []byte) (int, error) {
	if text, found := strings.CutPrefix(string(line), "http: TLS handshake error "); found {
		s.handshakes.note(errors.New(strings.TrimSpace(text)))
		return len(line), nil
	}
	return s.others.Write(line)
}

// httpFaults is the error log of an HTTP server: clients cannot fill it with handshakes.
func httpFaults(listener string, l *slog.Logger) *log.Logger {
	others := slog.NewLogLogger(l.Handler(), slog.LevelWarn)
	return log.New(serverFaults{&faultLog{log: l, listener: listener}, others.Writer()}, "", 0)
}
