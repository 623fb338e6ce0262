package lease

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// journal is the file in which an embedded store keeps its leases over a restart: one line of JSON for each script that
// changed something, replaced by what there is when it has grown. It is not synchronized to the disk: it survives the
// process, not the machine.
type journal struct {
	path  string
	lock  *os.File
	file  *os.File
	lines int
}

// change is one line: fields of one key; a null one is gone.
type change struct {
	Key     string             `json:"key"`
	Fields  map[string]*string `json:"fields"`
	Expires int64              `json:"expires"` // ms; 0 is never
}

const compactAfter = 10_000 // lines

// openJournal reads a file into hashes, or begins one. Another process that has it open is an error.
func openJournal(path string, hashes map[string]*hash) (*journal, error) {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is in use by another process: %w", path, err), lock.Close())
	}
	j := &journal{path: path, lock: lock}
	if err = j.load(hashes); err == nil {
		err = j.rewrite(hashes)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return j, nil
}

func (j *journal) load(hashes map[string]*hash) error {
	file, err := os.Open(j.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return j.read(file, hashes)
}

// read takes in all whole lines. The last one may be cut: its script was never answered.
func (j *journal) read(file io.Reader, hashes map[string]*hash) error {
	in := bufio.NewReaderSize(file, 64<<10)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if err == io.EOF { //nolint:errorlint // bufio returns it as it is
			return nil
		}
		if err != nil {
			return err
		}
		var c change
		if err := json.Unmarshal(line, &c); err != nil {
			return fmt.Errorf("%s, line %d is no record of a lease store: %w", j.path, n, err)
		}
		c.apply(hashes)
	}
}

func (c change) apply(hashes map[string]*hash) {
	h := hashes[c.Key]
	if h == nil {
		h = &hash{fields: map[string]string{}}
		hashes[c.Key] = h
	}
	h.expires = time.Time{}
	if c.Expires > 0 {
		h.expires = time.UnixMilli(c.Expires)
	}
	for field, value := range c.Fields {
		if value == nil {
			delete(h.fields, field)
		} else {
			h.fields[field] = *value
		}
	}
}

func lineOf(key string, h *hash, fields map[string]*string) ([]byte, error) {
	c := change{Key: key, Fields: fields}
	if h != nil && !h.expires.IsZero() {
		c.Expires = h.expires.UnixMilli()
	}
	line, err := json.Marshal(c)
	return append(line, '\n'), err
}

// add writes down what a script changed.
func (j *journal) add(changes map[string]map[string]*string, hashes map[string]*hash) error {
	if j == nil || len(changes) == 0 {
		return nil
	}
	if j.lines >= compactAfter {
		return j.rewrite(hashes)
	}
	for key, fields := range changes {
		line, err := lineOf(key, hashes[key], fields)
		if err == nil {
			_, err = j.file.Write(line)
		}
		if err != nil {
			return fmt.Errorf("embedded lease store: %w", err)
		}
		j.lines++
	}
	return nil
}

// rewrite replaces the file by one that says what there is.
func (j *journal) rewrite(hashes map[string]*hash) error {
	file, err := os.CreateTemp(filepath.Dir(j.path), filepath.Base(j.path)+".*")
	if err != nil {
		return err
	}
	err = writeAll(file, hashes)
	if err == nil {
		err = os.Rename(file.Name(), j.path)
	}
	if err != nil {
		return errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	if j.file != nil {
		_ = j.file.Close() // what it says is in the new one
	}
	j.file, j.lines = file, len(hashes)
	return nil
}

func writeAll(file io.Writer, hashes map[string]*hash) error {
	out := bufio.NewWriter(file)
	for key, h := range hashes {
		fields := map[string]*string{}
		for field, value := range h.fields {
			fields[field] = &value
		}
		line, err := lineOf(key, h, fields)
		if err != nil {
			return err
		}
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
	return out.Flush()
}

func (j *journal) close() error {
	if j == nil {
		return nil
	}
	return errors.Join(j.file.Close(), j.lock.Close())
}
