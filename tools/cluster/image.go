package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// image is a container image of one layer.
type image struct {
	names      []string // NAME:TAG, each a name for the same image
	user       string   // UID:GID
	entrypoint []string
	command    []string
	files      []file
}

// file is a file of an image: the content of a file here, or given, a symbolic link, or a directory.
type file struct {
	path, from, content, link string
	mode                      fs.FileMode
	owner                     int // user and group
}

// epoch is the time of everything in an image, so that the same content is the same image.
var epoch = time.Unix(0, 0)

// write writes the image as an archive that `ctr images import` reads (docker save's form).
func (i image) write(path string) error {
	layer, err := i.layer()
	if err != nil {
		return fmt.Errorf("image %s: %w", i.names[0], err)
	}
	digest := sha256.Sum256(layer)
	settings, err := json.Marshal(map[string]any{
		"architecture": goarch, "os": "linux", "created": epoch,
		"config": map[string]any{
			"User": i.user, "Entrypoint": i.entrypoint, "Cmd": i.command,
			"Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(digest[:])}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": i.names, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	out, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	for _, part := range []struct {
		name string
		text []byte
	}{{"manifest.json", manifest}, {"config.json", settings}, {"layer.tar", layer}} {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Name: part.name, Size: int64(len(part.text)), Mode: 0o644, ModTime: epoch}))
		_, writeErr := w.Write(part.text)
		err = errors.Join(err, writeErr)
	}
	return errors.Join(err, w.Close(), out.Close(), os.Rename(path+".new", path))
}

// layer is the image's files as a tar, the folders above them included.
func (i image) layer() ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	all := slices.Clone(i.files)
	slices.SortStableFunc(all, func(x, y file) int { return strings.Compare(x.path, y.path) })
	made := map[string]bool{".": true}
	for _, f := range all {
		for dir := filepath.Dir(f.path); dir != "."; dir = filepath.Dir(dir) {
			if !made[dir] && !slices.ContainsFunc(all, func(x file) bool { return x.path == dir }) {
				made[dir] = true
				if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: epoch}); err != nil {
					return nil, err
				}
			}
		}
		if made[f.path] {
			continue
		}
		made[f.path] = true
		if err := f.write(w); err != nil {
			return nil, fmt.Errorf("%s: %w", f.path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func (f file) write(w *tar.Writer) error {
	h := &tar.Header{Name: f.path, Mode: int64(f.mode.Perm()), Uid: f.owner, Gid: f.owner, ModTime: epoch}
	if f.mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	var content io.Reader = strings.NewReader(f.content)
	switch {
	case f.link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
	case f.mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, f.path+"/"
	case f.from != "":
		text, err := os.ReadFile(f.from)
		if err != nil {
			return err
		}
		content, h.Size = bytes.NewReader(text), int64(len(text))
	default:
		h.Size = int64(len(f.content))
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(w, content)
	return err
}
