// Package certs issues certificates that last an hour, for tests.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Authority is a CA.
type Authority struct {
	Cert *x509.Certificate
	PEM  []byte // of Cert

	key *ecdsa.PrivateKey
}

// New returns a CA with a key of its own.
func New() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := valid()
	template.Subject.CommonName = "test CA"
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &Authority{cert, encode("CERTIFICATE", der), key}, err
}

// valid is what every certificate has.
func valid() *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "leaf"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// Issue signs a certificate, for servers and clients, with DNS names, IP addresses and URIs, and returns it and its key as PEM.
func (a *Authority) Issue(names ...string) (cert, key []byte, err error) {
	template := valid()
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	return a.issue(template, names)
}

// IssueExpired is Issue for a certificate that has ended.
func (a *Authority) IssueExpired(names ...string) (cert, key []byte, err error) {
	template := valid()
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.NotAfter = time.Now().Add(-time.Minute)
	return a.issue(template, names)
}

func (a *Authority) issue(template *x509.Certificate, names []string) (cert, key []byte, err error) {
	for _, n := range names {
		switch ip := net.ParseIP(n); {
		case ip != nil:
			template.IPAddresses = append(template.IPAddresses, ip)
		case strings.Contains(n, "://"):
			u, err := url.Parse(n)
			if err != nil {
				return nil, nil, err
			}
			template.URIs = append(template.URIs, u)
		default:
			template.DNSNames = append(template.DNSNames, n)
		}
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Cert, &own.PublicKey, a.key)
	if err != nil {
		return nil, nil, err
	}
	raw, err := x509.MarshalECPrivateKey(own)
	return encode("CERTIFICATE", der), encode("EC PRIVATE KEY", raw), err
}

// Files of a folder, named as Kubernetes names them in a Secret of the type kubernetes.io/tls.
const (
	CertFile = "tls.crt"
	KeyFile  = "tls.key"
	CAFile   = "ca.crt"
)

// WriteTo issues a certificate and writes it, its key and the CA that the other side must be of into a folder.
func (a *Authority) WriteTo(dir string, other *Authority, names ...string) error {
	cert, key, err := a.Issue(names...)
	return errors.Join(err,
		os.WriteFile(filepath.Join(dir, CAFile), other.PEM, 0o600),
		os.WriteFile(filepath.Join(dir, KeyFile), key, 0o600),
		os.WriteFile(filepath.Join(dir, CertFile), cert, 0o600))
}
