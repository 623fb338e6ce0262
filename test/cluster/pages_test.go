//go:build cluster

package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

var block = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$")

// runSection runs the shell blocks of a page's section as they are written, or those with these numbers, in a folder with a copy of
// deploy, and compares what is printed with the text block that follows.
func runSection(t *testing.T, page, section string, numbers ...int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(node.root, "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n## "+section+"\n")
	if !found {
		t.Fatalf("%s has no section %q", page, section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	const separator = "--- end of block"
	script := "set -eu\n"
	var want []string
	number, runs := 0, false
	for _, m := range block.FindAllStringSubmatch(rest, -1) {
		if m[1] == "text" {
			if runs {
				want[len(want)-1] = strings.TrimSpace(m[2])
			}
			continue
		}
		number++
		if runs = len(numbers) == 0 || slices.Contains(numbers, number); !runs {
			continue
		}
		script += m[2] + fmt.Sprintf("echo %q\n", separator)
		want = append(want, "")
	}
	if len(want) == 0 || len(want) < len(numbers) {
		t.Fatalf("%s, %s: %d blocks with commands, want %v", page, section, number, numbers)
	}
	folder := t.TempDir()
	if err := os.CopyFS(filepath.Join(folder, "deploy"), os.DirFS(filepath.Join(node.root, "deploy"))); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(folder, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", "-c", script)
	c.Dir, c.Stdout, c.Stderr = folder, out, out
	c.Env = append(command(ctx, "kubectl").Env, "PATH="+filepath.Join(node.tools, "bin")+":"+os.Getenv("PATH"),
		"HELM_CACHE_HOME="+folder, "HELM_CONFIG_HOME="+folder, "HELM_DATA_HOME="+folder)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	err = c.Run()
	_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // what the page left in the background
	printed, _ := os.ReadFile(out.Name())
	t.Logf("%s, %s:\n%s", page, section, printed)
	if err != nil {
		t.Fatalf("%s, %s: %v", page, section, err)
	}
	for i, got := range strings.Split(string(printed), separator+"\n")[:len(want)] {
		if got = strings.TrimSpace(got); want[i] != "" && got != want[i] {
			t.Errorf("%s, %s, block %d prints %q, the page says %q", page, section, i+1, got, want[i])
		}
	}
}
