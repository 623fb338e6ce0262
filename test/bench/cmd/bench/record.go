package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/test/bench/direct"
	"github.com/headgate/headgate/test/bench/load"
)

// record lets a fresh no-op server write down one exchange of every selected kind.
func (b *bench) record(ctx context.Context) error {
	noop, err := b.build(ctx, b.module, "./noop")
	if err != nil {
		return err
	}
	if b.upstream, err = load.NewUpstream(); err != nil {
		return err
	}
	for i, shape := range b.selected(load.Shapes()) {
		file := filepath.Join(b.module, "direct", "recordings", direct.FileName(shape))
		err := b.startArm(ctx, server{name: fmt.Sprintf("recorder-%d", i), clusters: lanesOn, command: func(c *config.Config, _ string) (string, []string) {
			return noop, []string{"-listen", c.Listen.GRPC, "-admin", c.Listen.Admin, "-record", file}
		}}, "tcp")
		if err != nil {
			return err
		}
		_, err = load.Run(ctx, load.Options{Address: b.arms[i].envoy.Address, Shape: shape, Connections: 1, Duration: 100 * time.Millisecond})
		if err != nil {
			return err
		}
		b.arms[i].process.Stop() // completes the file
		fmt.Fprintln(os.Stderr, "recorded", file)
	}
	return nil
}
