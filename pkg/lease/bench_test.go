package lease_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

// BenchmarkCheck compares the fence with a bare GET through the same client; run it on an idle machine.
func BenchmarkCheck(b *testing.B) {
	for name, s := range map[string]lease.Settings{
		"redis":    onRedis(settings("acct-1", "acct-2"), startRedis(b).Addr),
		"embedded": settings("acct-1", "acct-2"),
	} {
		svc, ctx := newService(b, s), context.Background()
		l := acquire(b, svc, 1, teamA)
		f := fence(b, svc, 1, teamA, l.Generation)
		if name == "redis" {
			if err := svc.Client().Set(ctx, "bare", strings.Repeat("x", 200), time.Minute).Err(); err != nil {
				b.Fatal(err)
			}
			b.Run(name+"/get", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := svc.Client().Get(ctx, "bare").Err(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		b.Run(name+"/check", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, r := svc.Check(ctx, f); r != nil {
					b.Fatal(r.Reason)
				}
			}
		})
		b.Run(name+"/unmanaged", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, r := svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool}); r != nil {
					b.Fatal(r.Reason)
				}
			}
		})
	}
}
