package main

import (
	"bytes"
	"embed"
	"errors"
	"os"
	"path/filepath"
	"text/template"
)

// What the node's parts must agree on. All addresses are inside the node's own network.
const (
	nodeName      = "node"
	nodeIP        = "10.250.0.1"
	nodeNetwork   = nodeIP + "/24"
	serviceSubnet = "10.96.0.0/16"
	apiServiceIP  = "10.96.0.1"
	dnsIP         = "10.96.0.10"
	podSubnet     = "10.244.0.0/24"
	nodeCgroup    = "headgate-node"
	pauseImage    = "headgate.test/pause:1"
	dnsImage      = "headgate.test/coredns:1"
	volumeFolder  = "/var/lib/headgate-volumes" // in the node's own /var
)

// volumes are the persistent volumes that claims without a storage class get, by number. A volume is not used again.
var volumes = []int{1, 2, 3, 4, 5, 6, 7, 8}

//go:embed files
var files embed.FS

// fill executes the template of that name under files.
func (f folders) fill(name string) ([]byte, error) {
	t, err := template.ParseFS(files, "files/"+name)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, map[string]any{
		"Volumes": volumes, "VolumeFolder": volumeFolder, "NodeName": nodeName,
		"Node": f.Node, "Bin": f.Bin, "PKI": filepath.Join(f.Node, "pki"), "NodeIP": nodeIP, "PodSubnet": podSubnet, "DNSIP": dnsIP,
		"Cgroup": nodeCgroup, "PauseImage": pauseImage, "DNSImage": dnsImage,
	})
	return b.Bytes(), err
}

// writeSettings writes what the programs of a new node read.
func writeSettings(f folders) error {
	for _, dir := range []string{"logs", "cni", "containerd", "kubelet", "etcd", "fake", "var-upper", "var-work"} {
		if err := os.MkdirAll(filepath.Join(f.Node, dir), 0o755); err != nil {
			return err
		}
	}
	pki := filepath.Join(f.Node, "pki")
	if err := writeCertificates(pki); err != nil {
		return err
	}
	write := func(name string, text []byte) error { return os.WriteFile(filepath.Join(f.Node, name), text, 0o600) }
	for _, name := range []string{"admin", "controller-manager", "scheduler", "proxy", "kubelet"} {
		if err := write(name+".conf", []byte(kubeconfig(pki, name, ""))); err != nil {
			return err
		}
	}
	for file, from := range map[string]string{
		"containerd.toml": "containerd.toml", "kubelet.yaml": "kubelet.yaml", "kube-proxy.yaml": "kube-proxy.yaml", "dns.yaml": "dns.yaml", "volumes.yaml": "volumes.yaml",
		"cni/10-pods.conflist": "pods.conflist",
	} {
		text, err := f.fill(from)
		if err != nil {
			return err
		}
		if err := write(file, text); err != nil {
			return err
		}
	}
	return errors.Join(write("resolv.conf", []byte("nameserver "+dnsIP+"\n")))
}
