package admin

import (
	"slices"
	"testing"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/config"
)

// TestTrafficNamesWhatNothingMeets: a name that Envoy spells otherwise shows as one that was never seen.
func TestTrafficNamesWhatNothingMeets(t *testing.T) {
	c := config.Default()
	off := c.Cluster(config.AnyCluster)
	off.Lanes.Mode = adaptive.Off
	c.Clusters["chat"], c.Clusters["chta"], c.Clusters["files"] = c.Cluster(config.AnyCluster), c.Cluster(config.AnyCluster), off
	got := NewTraffic(7, c, map[string]adaptive.Snapshot{"chat": {}, "other": {}})
	if got.RequestsWithoutTenant != 7 || !slices.Equal(got.UnseenClusters, []string{"chta"}) {
		t.Errorf("traffic %+v, want 7 requests without a tenant and chta unseen", got)
	}
}
