package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

const goarch = runtime.GOARCH

// buildImages writes the archives of all images that the manifests and the tests use.
func buildImages(ctx context.Context, f folders) error {
	made, err := f.productImages(ctx)
	if err != nil {
		return err
	}
	made["pause"] = image{names: []string{pauseImage}, user: "65535:65535", entrypoint: []string{"/pause"}, files: []file{program755("pause", f.Bin+"/pause")}}
	made["coredns"] = image{names: []string{dnsImage}, user: "65532:65532", entrypoint: []string{"/coredns"}, files: []file{program755("coredns", f.Bin+"/coredns")}}
	control := f.Bin + "/envoy-gateway"
	made["envoy-gateway"] = image{
		names: []string{"docker.io/envoyproxy/gateway:v1.9.1"}, user: "65532:65532", entrypoint: []string{"envoy-gateway"},
		files: []file{program755("usr/local/bin/envoy-gateway", control), {path: "tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777}},
	}
	for name, i := range made {
		if err := i.write(filepath.Join(f.Images, name+".tar")); err != nil {
			return err
		}
	}
	return nil
}

// productImages are those of the repository's programs and of the programs that it uses.
func (f folders) productImages(ctx context.Context) (map[string]image, error) {
	say("building the images: sidecar, Envoy, upstream, Redis ...")
	work := filepath.Join(f.Images, "work")
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	tools, err := f.output(ctx, "go", "run", "./internal/stack/demo", "tools")
	if err != nil {
		return nil, err
	}
	at := map[string]string{}
	for path := range strings.FieldsSeq(tools) {
		at[filepath.Base(path)] = path
	}
	envoy, redis := at["envoy"], at["redis-server"]
	if envoy == "" || redis == "" {
		return nil, fmt.Errorf("the demo's tools are %q, want the paths of an envoy and of a redis-server among them", tools)
	}
	sidecar, err := f.sidecarImage(ctx, work)
	if err != nil {
		return nil, err
	}
	if err := f.goBuild(ctx, work+"/server", "./test/cluster/server"); err != nil {
		return nil, err
	}
	made := map[string]image{"extproc": sidecar}
	if made["envoy"], err = envoyImage(ctx, envoy); err != nil {
		return nil, err
	}
	if made["redis"], err = redisImage(ctx, redis); err != nil {
		return nil, err
	}
	if made["upstream"], err = upstreamImage(ctx, work+"/server"); err != nil {
		return nil, err
	}
	return made, nil
}

// sidecarImage follows the steps of the Dockerfile.
func (f folders) sidecarImage(ctx context.Context, work string) (image, error) {
	if err := f.goBuild(ctx, work+"/extproc", "./cmd/extproc"); err != nil {
		return image{}, err
	}
	root, user := work+"/root-fs", work+"/user-fs"
	if _, err := f.output(ctx, "deploy/image/rootfs.sh", root, user); err != nil {
		return image{}, err
	}
	i := image{names: []string{"headgate/extproc:dev"}, user: "65532:65532", entrypoint: []string{"/extproc"}, files: []file{program755("extproc", work+"/extproc")}}
	for folder, owner := range map[string]int{root: 0, user: 65532} {
		err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == folder {
				return err
			}
			relative, _ := filepath.Rel(folder, path)
			info, err := d.Info()
			one := file{path: relative, mode: info.Mode(), owner: owner}
			if !d.IsDir() {
				one.from = path
			}
			i.files = append(i.files, one)
			return err
		})
		if err != nil {
			return image{}, err
		}
	}
	return i, nil
}

// envoyImage is Envoy's own image as far as the manifests need it: Envoy and bash.
func envoyImage(ctx context.Context, envoy string) (image, error) {
	files, err := withShell(ctx, []string{"bash", "sleep", "cat"}, map[string]string{"usr/local/bin/envoy": envoy})
	return image{
		names: []string{"envoyproxy/envoy:v1.40.0"}, user: "0:0", entrypoint: []string{"envoy"},
		files: append(files, file{path: "etc/passwd", content: "root:x:0:0::/:/bin/bash\nenvoy:x:101:101::/:/bin/bash\n", mode: 0o644},
			file{path: "etc/group", content: "root:x:0:\nenvoy:x:101:\n", mode: 0o644}),
	}, err
}

// redisImage has the name of the manifests' Redis and the version that the tests use.
func redisImage(ctx context.Context, redis string) (image, error) {
	files, err := withShell(ctx, []string{"sh"}, map[string]string{"usr/local/bin/redis-server": redis})
	return image{names: []string{"docker.io/library/redis:8.2"}, user: "999:999", entrypoint: []string{"redis-server"}, files: files}, err
}

// upstreamImage is the demo upstream, which also stands for a process to protect: with a shell, as the overlay
// shared-process wants it.
func upstreamImage(ctx context.Context, server string) (image, error) {
	files, err := withShell(ctx, []string{"sh", "sed", "mv", "cat"}, map[string]string{"app/server": server})
	return image{
		names: []string{"docker.io/example/llm-gateway:dev"}, user: "65532:65532", entrypoint: []string{"/app/server"}, files: files,
	}, err
}

func program755(path, from string) file { return file{path: path, from: from, mode: 0o755} }

// withShell is an image's file system with commands of this machine, other programs, the libraries of all, root certificates
// and /tmp.
func withShell(ctx context.Context, commands []string, programs map[string]string) ([]file, error) {
	files := []file{
		{path: "bin", link: "usr/bin"}, {path: "lib", link: "usr/lib"}, {path: "lib64", link: "usr/lib64"}, {path: "usr/lib64", mode: fs.ModeDir | 0o755},
		{path: "tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777},
	}
	for _, name := range commands {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("no %s on PATH for the images", name)
		}
		files = append(files, program755("usr/bin/"+name, path))
	}
	for path, from := range programs {
		files = append(files, program755(path, from))
	}
	for _, f := range slices.Clone(files) {
		if f.from == "" {
			continue
		}
		libraries, err := libraries(ctx, f.from)
		if err != nil {
			return nil, err
		}
		for _, l := range libraries {
			at := strings.TrimPrefix(l, "/")
			if !strings.HasPrefix(at, "usr/") {
				at = "usr/" + at // where lib and lib64 point
			}
			files = append(files, program755(at, l))
		}
	}
	certificates := "/etc/ssl/certs/ca-certificates.crt"
	if exists(certificates) {
		files = append(files, file{path: strings.TrimPrefix(certificates, "/"), from: certificates, mode: 0o644})
	}
	return files, nil
}

var libraryPath = regexp.MustCompile(`/[^ ()]+\.so[^ ()]*`)

// libraries are the shared libraries that a program loads, none for a static one.
func libraries(ctx context.Context, program string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "ldd", program).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("not a dynamic executable")) {
		return nil, fmt.Errorf("ldd %s: %w: %s", program, err, out)
	}
	return libraryPath.FindAllString(string(out), -1), nil
}

// goBuild builds a program of the repository as the Dockerfile does.
func (f folders) goBuild(ctx context.Context, to, from string) error {
	c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version=dev", "-o", to, from)
	c.Dir, c.Env, c.Stderr = f.Root, append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("build %s: %w", from, err)
	}
	return nil
}

// output runs a command in the repository and returns what it prints.
func (f folders) output(ctx context.Context, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Stderr = f.Root, os.Stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(out), nil
}
