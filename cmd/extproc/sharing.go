package main

import (
	"fmt"
	"reflect"

	"github.com/redis/go-redis/v9"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/lease"
	"github.com/headgate/headgate/pkg/share"
)

// shareConnections are enough for one exchange at a time and one that hangs.
const shareConnections = 4

// sharing are the groups with what they meet at: the leases' Redis, through connections of their own, so that neither waits
// for the other.
type sharing struct {
	groups   *share.Groups
	settings lease.RedisSettings // of the client
	client   redis.UniversalClient
	store    share.Store
}

func newSharing() *sharing { return &sharing{groups: share.NewGroups()} }

// prepare does what can fail of putting a configuration into force. Either commit or discard must be called.
func (s *sharing) prepare(cfg *config.Config, lanes *adaptive.Registry) (commit, discard func(), err error) {
	client, store, settings := s.client, s.store, cfg.Leases.Store.Redis
	settings.PoolSize = shareConnections
	switch shares := anyShares(cfg); {
	case !shares:
		client, store = nil, nil
	case client == nil || !reflect.DeepEqual(settings, s.settings):
		if client, err = lease.NewRedisClient(settings); err != nil {
			return nil, nil, fmt.Errorf("share: leases.store.redis: %w", err)
		}
		store = share.NewRedis(client, settings.KeyPrefix)
	}
	discard = func() {
		if client != nil && client != s.client {
			_ = client.Close()
		}
	}
	commit = func() {
		before := s.client
		s.client, s.store, s.settings = client, store, settings
		s.groups.Configure(store, groupOf(cfg), laneSettings(cfg), lanes.Controllers())
		if before != nil && before != client {
			_ = before.Close()
		}
	}
	return commit, discard, nil
}

// close has the members leave their groups.
func (s *sharing) close() {
	s.groups.Close()
	if s.client != nil {
		_ = s.client.Close()
	}
}

func anyShares(cfg *config.Config) bool {
	for _, c := range cfg.Clusters {
		if shares(c.Lanes) {
			return true
		}
	}
	return false
}

func shares(s adaptive.Settings) bool {
	return s.Share == adaptive.ShareRedis && s.Mode != adaptive.Off
}

// groupOf names the group that a cluster shares its limit with; "" is none.
func groupOf(cfg *config.Config) func(string) string {
	return func(cluster string) string {
		s := cfg.Cluster(cluster).Lanes
		switch {
		case !shares(s):
			return ""
		case s.ShareGroup != "":
			return s.ShareGroup
		}
		return cluster
	}
}
