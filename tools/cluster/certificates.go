package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority signs the certificates of one node, which live as long as the node.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// writeCertificates makes an authority and the certificates and keys of the node's parts in dir.
func writeCertificates(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	a := &authority{dir: dir}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	if err := a.issue("ca", template); err != nil {
		return err
	}
	for _, c := range []struct {
		file, name, group string
		ips               []string
		dns               []string
	}{
		{file: "apiserver", name: "kube-apiserver", ips: []string{nodeIP, apiServiceIP}, dns: []string{"kubernetes.default.svc"}},
		{file: "apiserver-kubelet", name: "apiserver-kubelet", group: "system:masters"},
		{file: "admin", name: "admin", group: "system:masters"},
		{file: "controller-manager", name: "system:kube-controller-manager"},
		{file: "scheduler", name: "system:kube-scheduler"},
		{file: "proxy", name: "system:kube-proxy"},
		{file: "kubelet", name: "system:node:" + nodeName, group: "system:nodes"},
	} {
		t := &x509.Certificate{
			Subject: pkix.Name{CommonName: c.name}, DNSNames: c.dns, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		}
		if c.group != "" {
			t.Subject.Organization = []string{c.group}
		}
		for _, ip := range c.ips {
			t.IPAddresses = append(t.IPAddresses, net.ParseIP(ip))
		}
		if err := a.issue(c.file, t); err != nil {
			return fmt.Errorf("certificate of %s: %w", c.file, err)
		}
	}
	return serviceAccountKey(dir)
}

// issue makes a key and a certificate for t, signed by the authority, or by itself when there is none yet.
func (a *authority) issue(file string, t *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return err
	}
	t.SerialNumber, t.NotBefore, t.NotAfter = serial, time.Now().Add(-time.Hour), time.Now().AddDate(1, 0, 0)
	if a.cert == nil {
		a.cert, a.key = t, key
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return err
	}
	if t == a.cert {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			return err
		}
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(writePEM(filepath.Join(a.dir, file+".crt"), "CERTIFICATE", der), writePEM(filepath.Join(a.dir, file+".key"), "EC PRIVATE KEY", private))
}

// serviceAccountKey makes the pair that signs and checks the tokens of service accounts.
func serviceAccountKey(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	return errors.Join(writePEM(filepath.Join(dir, "sa.key"), "EC PRIVATE KEY", private), writePEM(filepath.Join(dir, "sa.pub"), "PUBLIC KEY", public))
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// kubeconfig is a client's configuration with one of the certificates of writeCertificates. An empty proxy reaches the API
// server directly, which only works inside the node.
func kubeconfig(pki, certificate, proxy string) string {
	if proxy != "" {
		proxy = ", proxy-url: \"http://" + proxy + "\""
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: headgate, cluster: {server: "https://%s:6443", certificate-authority: "%s/ca.crt"%s}}]
users: [{name: %s, user: {client-certificate: "%s/%s.crt", client-key: "%s/%s.key"}}]
contexts: [{name: headgate, context: {cluster: headgate, user: %s}}]
current-context: headgate
`, nodeIP, pki, proxy, certificate, pki, certificate, pki, certificate, certificate)
}
