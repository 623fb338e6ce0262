package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// ProcessOptions describe a child process.
type ProcessOptions struct {
	Name   string   // for messages
	Path   string   // of the program
	Args   []string // without the program's name
	Env    []string // "key=value"; nil is this process's environment
	Dir    string   // working directory; empty is this process's
	Log    string   // file that standard output and standard error are appended to
	Stdout *os.File // standard output instead of the log, when set
	// Grace is what Stop leaves the process between SIGTERM and SIGKILL; 0 is 5 s.
	Grace time.Duration
}

// Process is a running child process, the leader of its own process group.
type Process struct {
	o    ProcessOptions
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of Wait; readable once done is closed
	stop sync.Once
}

// StartProcess starts a child process. The kernel kills it when this process dies.
func StartProcess(o ProcessOptions) (*Process, error) {
	log, err := os.OpenFile(o.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Name, err)
	}
	defer log.Close()
	p := &Process{o: o, cmd: exec.Command(o.Path, o.Args...), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir = o.Env, o.Dir
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if o.Stdout != nil {
		p.cmd.Stdout = o.Stdout
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to the process alone.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// ExitCode returns the exit code of a process that has ended, -1 when a signal ended it or it still runs.
func (p *Process) ExitCode() int {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	default:
		return -1
	}
}

// Stop ends the process: SIGTERM, and SIGKILL for its whole group after the grace. It returns when the process is
// gone, and is idempotent.
func (p *Process) Stop() {
	p.stop.Do(func() {
		grace := p.o.Grace
		if grace == 0 {
			grace = 5 * time.Second
		}
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only when it has ended, which is what is wanted
		select {
		case <-p.done:
		case <-time.After(grace):
		}
		_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
		<-p.done
	})
}

// Exited returns the error that describes an end nobody asked for, with the end of the log.
func (p *Process) Exited() error {
	how := "ended with exit code 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s: %s\n%s", p.o.Name, how, p.Tail())
}

// Tail returns the last lines of the log.
func (p *Process) Tail() string {
	text, err := os.ReadFile(p.o.Log)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("last lines of its log:\n%s", lastLines(text, 40))
}

// Log returns the whole log so far.
func (p *Process) Log() ([]byte, error) { return os.ReadFile(p.o.Log) }

// waitReady asks probe every few milliseconds until it returns nil. It gives up when the process ends or ctx does, with
// the end of the log and the last answer of probe.
func (p *Process) waitReady(ctx context.Context, probe func(context.Context) error) error {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := probe(attempt)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return p.Exited()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %w\n%s", p.o.Name, ctx.Err(), err, p.Tail())
		case <-time.After(pause):
		}
	}
}

// lastLines returns the last n lines of text.
func lastLines(text []byte, n int) string {
	lines := bytes.Split(bytes.TrimRight(text, "\n"), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-n):], []byte("\n")))
}

// tempDir makes a directory for one child's files; remove it when the child is gone.
func tempDir(name string) (string, error) {
	dir, err := os.MkdirTemp("", "headgate-"+name+"-")
	if err != nil {
		return "", fmt.Errorf("directory for %s: %w", name, err)
	}
	return filepath.Abs(dir)
}

// errNoBinary says that a start lacks the program to run.
var errNoBinary = errors.New("no program to run was given")
