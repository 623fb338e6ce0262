package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/admin"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/share"
)

// How much of the longest lists a terminal shows.
const (
	topClusters = 20
	topLanes    = 10
	topRefusals = 10
	barWidth    = 40
)

func newTopCommand(configPath *string) *cobra.Command {
	var once bool
	var every time.Duration
	var address string
	command := &cobra.Command{
		Use:   "top",
		Short: "Show what a running sidecar does, in the terminal",
		Long: `Shows what the status page shows: the byte budget, pressure, route clusters, lanes with waiters, lease pools and the
last refusals. It queries the admin address of the configuration, or the one given, until it is interrupted.`,
		Example: `  extproc top
  extproc top --address 127.0.0.1:9003 --every 5s
  extproc top --once | grep queue_timeout`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if address == "" {
				cfg, err := config.Load(*configPath, os.Environ())
				if err != nil {
					return err
				}
				address = cfg.Listen.Admin
			}
			if address == "" {
				return errors.New("listen.admin is empty: the sidecar has no admin port")
			}
			if every <= 0 {
				return fmt.Errorf("--every is %v, want more than nothing", every)
			}
			return top(c.Context(), c.OutOrStdout(), "http://"+address, every, once)
		},
	}
	command.Flags().BoolVar(&once, "once", false, "print once, without control characters")
	command.Flags().DurationVar(&every, "every", time.Second, "interval between updates")
	command.Flags().StringVar(&address, "address", "", "the admin address, host:port (default: listen.admin of the configuration)")
	return command
}

// Control sequences of terminals (ECMA-48): home, erase to the end of the line and of the display.
const (
	cursorHome   = "\x1b[H"
	eraseLine    = "\x1b[K"
	eraseDisplay = "\x1b[J"
)

// top draws until ctx ends. A sidecar that does not answer is said so and asked again; with once it is an error.
func top(ctx context.Context, w io.Writer, url string, every time.Duration, once bool) error {
	if once {
		h, err := fetchHealth(ctx, url, 5*time.Second)
		if err != nil {
			return err
		}
		_, err = w.Write(drawTop(h))
		return err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		screen := []byte("no answer, trying again: ")
		h, err := fetchHealth(ctx, url, max(every, 2*time.Second))
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			screen = append(screen, err.Error()+"\n"...)
		default:
			screen = drawTop(h)
		}
		// Drawing over what was there does not flicker as clearing would.
		screen = bytes.ReplaceAll(screen, []byte("\n"), []byte(eraseLine+"\n"))
		if _, err := fmt.Fprintf(w, "%s%s%s", cursorHome, screen, eraseDisplay); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// fetchHealth asks for the health document.
func fetchHealth(ctx context.Context, url string, timeout time.Duration) (admin.Health, error) {
	var h admin.Health
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/monitoring/health", nil)
	if err != nil {
		return h, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return h, noAnswer(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return h, fmt.Errorf("query the sidecar: status %d", response.StatusCode)
	}
	if err := json.NewDecoder(response.Body).Decode(&h); err != nil {
		return h, fmt.Errorf("read the sidecar's answer: %w", err)
	}
	return h, nil
}

// drawTop is one screen.
func drawTop(h admin.Health) []byte {
	var b bytes.Buffer
	a := h.ChatAdmission
	fmt.Fprintf(&b, "Headgate %s  %s  up %v  %d in flight  config %s  %s\n\n", h.Version, h.Status,
		time.Duration(h.UptimeSeconds)*time.Second, h.Exchanges.InFlight, h.Config.Hash, h.Time.Format(time.TimeOnly))
	if h.Config.LastError != "" {
		fmt.Fprintf(&b, "Last reload failed: %s\n\n", oneLine(strings.Join(strings.Fields(h.Config.LastError), " ")))
	}
	share := 0.0
	if a.MaxInflightBytes > 0 {
		share = min(1, float64(a.InflightBytes)/float64(a.MaxInflightBytes))
	}
	filled := int(share * barWidth)
	fmt.Fprintf(&b, "Budget    [%s%s] %3.0f %%  %s of %s (%s, ceiling %s)\n", strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled),
		share*100, humanBytes(a.InflightBytes), humanBytes(a.MaxInflightBytes), a.BudgetSource, humanBytes(a.EffectiveCeiling))
	fmt.Fprintf(&b, "          %d heavy, %d waiting for %s, %d refused for bytes so far\n", a.ActiveHeavy+a.ActiveHealthyHeadroom, a.Waiting,
		humanBytes(a.QueuedBytes), a.ShedTotal)
	fmt.Fprintf(&b, "Pressure  %s", a.PressureSeverity)
	if a.PressureReason != "" {
		fmt.Fprintf(&b, ": %s is %.3g, threshold %.3g", a.PressureReason, a.PressureValue, a.PressureThreshold)
	}
	b.WriteString("\n\n")
	drawClusters(&b, h.AdaptiveAdmission)
	drawLevels(&b, h.AdaptiveAdmission)
	drawSharing(&b, h.Sharing)
	drawLanes(&b, h.AdaptiveAdmission)
	drawPools(&b, h.Leases)
	drawRefusals(&b, h)
	return b.Bytes()
}

// table writes aligned columns; an empty one is left out.
func table(b *bytes.Buffer, heading string, rows []string, most int) {
	if len(rows) == 0 {
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, heading)
	for _, row := range rows[:min(len(rows), most)] {
		fmt.Fprintln(w, row)
	}
	_ = w.Flush() // into memory
	if len(rows) > most {
		fmt.Fprintf(b, "and %d more\n", len(rows)-most)
	}
	b.WriteByte('\n')
}

func drawClusters(b *bytes.Buffer, clusters map[string]adaptive.Snapshot) {
	var rows []string
	for _, name := range slices.Sorted(maps.Keys(clusters)) {
		s := clusters[name]
		rows = append(rows, fmt.Sprintf("%s\t%s\t%d\t%d\t%s\t%.0f %%\t%d\t%d\t%d\t%d\t%s\t%s", oneLine(name), s.Mode, s.CurrentLimit, s.ActiveCost, activeOf(s),
			s.Utilization*100, s.QueuedCost+s.LaneQueuedCost+s.VirtualQueuedCost, s.QueuedCount+s.LaneQueuedCount+s.VirtualQueuedCount,
			s.LaneCount, s.RejectedCount, s.LastReason, signalOf(s)))
	}
	table(b, "CLUSTER\tMODE\tLIMIT\tACTIVE COST\tACTIVE\tUTILISATION\tQUEUED COST\tQUEUED\tLANES\tREFUSED\tLAST STEP\tFIRST TOKEN IN", rows, topClusters)
}

// activeOf is how many requests run, and how many may where that is bounded.
func activeOf(s adaptive.Snapshot) string {
	if s.MaxConcurrent == 0 {
		return strconv.Itoa(s.ActiveCount)
	}
	return fmt.Sprintf("%d of %d", s.ActiveCount, s.MaxConcurrent)
}

func drawLevels(b *bytes.Buffer, clusters map[string]adaptive.Snapshot) {
	var rows []string
	for _, name := range slices.Sorted(maps.Keys(clusters)) {
		for _, l := range clusters[name].Levels {
			rows = append(rows, fmt.Sprintf("%s\t%s\t%.0f %%\t%d\t%d\t%d\t%d", oneLine(name), l.Name, l.Share*100, l.ActiveCost, l.ActiveCount, l.QueuedCost, l.QueuedCount))
		}
	}
	table(b, "CLUSTER\tPRIORITY LEVEL\tSHARE\tACTIVE COST\tACTIVE\tQUEUED COST\tQUEUED", rows, topClusters)
}

// drawSharing shows the groups that route clusters share their limit in.
func drawSharing(b *bytes.Buffer, sharing map[string]share.Status) {
	var rows []string
	for _, name := range slices.Sorted(maps.Keys(sharing)) {
		s := sharing[name]
		var others []string
		for _, p := range s.Parts {
			others = append(others, strconv.Itoa(p.Share))
		}
		state := "ok"
		if s.Stale {
			state = "alone"
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%d\t%s\t%.1f s", oneLine(name), oneLine(s.Group), state, s.Members, s.Limit, s.Share,
			cmp.Or(strings.Join(others, " "), "-"), float64(s.AgeMS)/1000))
	}
	table(b, "SHARED LIMIT OF\tGROUP\tSTATE\tMEMBERS\tLIMIT\tOWN PART\tOTHERS\tAGE", rows, topClusters)
}

// signalOf is where first tokens are seen, and whether that says anything.
func signalOf(s adaptive.Snapshot) string {
	if s.HeadersAtOnce {
		return string(s.Signal) + " (at once)"
	}
	return string(s.Signal)
}

func drawLanes(b *bytes.Buffer, clusters map[string]adaptive.Snapshot) {
	type queue struct {
		cluster string
		adaptive.LaneTenant
	}
	var queues []queue
	for name, s := range clusters {
		for _, l := range s.LaneTenants {
			queues = append(queues, queue{name, l})
		}
	}
	slices.SortFunc(queues, func(x, y queue) int {
		return cmp.Or(cmp.Compare(y.QueuedCount, x.QueuedCount), cmp.Compare(x.cluster, y.cluster), cmp.Compare(x.ID, y.ID))
	})
	var rows []string
	for _, q := range queues {
		rows = append(rows, fmt.Sprintf("%s\t%s\t%d\t%d\t%d", oneLine(q.cluster), q.ID, q.ActiveCount, q.QueuedCount, q.QueuedCost))
	}
	table(b, "LANES WITH WAITERS\tLANE\tACTIVE\tWAITING\tCOST", rows, topLanes)
}

func drawPools(b *bytes.Buffer, l *admin.Leases) {
	if l == nil {
		return
	}
	var rows []string
	for _, name := range slices.Sorted(maps.Keys(l.Pools)) {
		p := l.Pools[name]
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%d", name, p.Status, p.Breaker, p.Connections, p.Active, p.Cooldown))
	}
	table(b, "LEASE POOL ("+l.Store+")\tSTATUS\tBREAKER\tCONNECTIONS\tLEASED\tIN COOLDOWN", rows, topClusters)
}

func drawRefusals(b *bytes.Buffer, h admin.Health) {
	var rows []string
	for _, r := range h.RecentRefusals {
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%d ms\t%s", r.At.Format(time.TimeOnly), oneLine(r.Cluster), r.Reason,
			cmp.Or(r.Lane, "_default"), humanBytes(r.Bytes), r.WaitMS, r.TraceID))
	}
	table(b, "REFUSED AT\tCLUSTER\tREASON\tLANE\tBYTES\tWAITED\tTRACE", rows, topRefusals)
}

// oneLine keeps names from moving the cursor.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) {
			return '?'
		}
		return r
	}, s)
}

// humanBytes writes a number of bytes with a unit.
func humanBytes(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	value, units := float64(n)/1024, "KMGT"
	for value >= 1024 && len(units) > 1 {
		value, units = value/1024, units[1:]
	}
	return fmt.Sprintf("%.1f %ciB", value, units[0])
}
