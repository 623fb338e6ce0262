package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

var shellBlock = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$")

// TestPagesRunAsWritten runs every shell block of a page, in order and in one shell in an empty folder, and compares what is
// printed with the text block that follows.
func TestPagesRunAsWritten(t *testing.T) {
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	programs := t.TempDir()
	build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(programs, "extproc"), "./cmd/extproc")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	envoy, err := stack.FindEnvoy(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(envoy, filepath.Join(programs, "envoy")); err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"add-to-your-envoy.md"} {
		t.Run(page, func(t *testing.T) { runPage(ctx, t, page, programs) })
	}
}

// separator stands between the outputs of two blocks.
const separator = "--- end of block"

func runPage(ctx context.Context, t *testing.T, page, programs string) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	script := "set -eu\n"
	var want []string // by block; empty is not compared
	for _, m := range shellBlock.FindAllStringSubmatch(string(text), -1) {
		if m[1] == "text" {
			want[len(want)-1] = strings.TrimSpace(m[2])
			continue
		}
		script += m[2] + fmt.Sprintf("echo %q\n", separator)
		want = append(want, "")
	}
	// A network of its own, where the machine allows it: the page's ports are free there.
	c := exec.CommandContext(ctx, "bash", "-c", script)
	if exec.CommandContext(ctx, "unshare", "-rn", "ip", "link", "set", "lo", "up").Run() == nil {
		c = exec.CommandContext(ctx, "unshare", "-rn", "bash", "-c", "ip link set lo up\n"+script)
	}
	c.Dir = t.TempDir()
	c.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"))
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	c.Stdout, c.Stderr = out, out
	err = c.Run()
	_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // what the page left in the background
	printed, _ := os.ReadFile(out.Name())
	if err != nil {
		t.Fatalf("%s: %v\n%s", page, err, printed)
	}
	got := strings.Split(string(printed), separator+"\n")
	for i, w := range want {
		if i >= len(got) {
			t.Fatalf("block %d of %s did not end: %s", i+1, page, printed)
		}
		if g := strings.TrimSpace(got[i]); w != "" && g != w {
			t.Errorf("block %d of %s prints %q, the page says %q", i+1, page, g, w)
		}
	}
}
