package lease

import "time"

// Mode of leases on a route cluster.
type Mode string

// The three modes.
const (
	ModeOff      Mode = "off"      // no lease is looked at
	ModeManaged  Mode = "managed"  // only managed principals need a lease
	ModeRequired Mode = "required" // everyone needs a lease
)

// ClusterSettings are the lease settings of one route cluster.
type ClusterSettings struct {
	Mode Mode   `yaml:"mode" enum:"off,managed,required" doc:"off checks nothing, managed checks managed principals, required checks everyone."`
	Pool string `yaml:"pool" doc:"Pool of connections that leases of this cluster bind to."`
}

// Settings of session leases.
type Settings struct {
	Store         StoreSettings           `yaml:"store" doc:"Where leases live."`
	TTL           time.Duration           `yaml:"ttl" min:"1s" max:"30m" doc:"Life of a lease without renewal."`
	MaxHold       time.Duration           `yaml:"maxHold" min:"1s" max:"24h" doc:"Longest life of one lease, renewals included."`
	RenewInFlight bool                    `yaml:"renewInFlight" doc:"Renews the lease of an exchange in flight at a third of the TTL."`
	OnLost        string                  `yaml:"onLost" enum:"keep,cut" doc:"What happens to a response whose lease is found lost: kept and counted, or cut."`
	OnStoreError  string                  `yaml:"onStoreError" enum:"deny,allow" doc:"Answer when the store cannot be asked: deny (503) or allow (counted, logged)."`
	Cooldown      CooldownSettings        `yaml:"cooldown" doc:"How long a connection gets no requests after its upstream said that it wants none."`
	AcquireRate   int                     `yaml:"acquireRate" min:"0" max:"1000000" doc:"Acquires a second that the API takes from one principal, and twice as many at once; 0 is no limit."`
	History       int                     `yaml:"history" min:"0" max:"1000000" doc:"Lifecycle events kept per pool."`
	Pools         map[string]PoolSettings `yaml:"pools" doc:"Pools of connections by name."`
}

// CooldownSettings say after which answers of an upstream, and for how long, its connection is in cooldown.
type CooldownSettings struct {
	Default      time.Duration `yaml:"default" min:"0" max:"24h" doc:"Cooldown after an answer without Retry-After, or with one of 0 or in the past."`
	Max          time.Duration `yaml:"max" min:"0" max:"24h" doc:"Longest cooldown that an upstream's Retry-After can ask for; 0 turns cooldowns off."`
	Statuses     []int         `yaml:"statuses" min:"400" max:"599" doc:"Statuses that begin a cooldown."`
	AuthStatuses []int         `yaml:"authStatuses" min:"400" max:"599" doc:"Statuses that begin one only for requests with a lease in a pool with gatewayAuth."`
}

// PoolSettings list a pool's connections in order of preference.
type PoolSettings struct {
	GatewayAuth bool                 `yaml:"gatewayAuth" doc:"The gateway, not the client, authenticates requests to these connections: what an upstream says about that is about the account."`
	Connections []ConnectionSettings `yaml:"connections" doc:"Connections in order of preference."`
}

// ConnectionSettings describe one upstream connection.
type ConnectionSettings struct {
	ID          string   `yaml:"id" required:"true" doc:"Identifier; the value of x-omniroute-connection."`
	Cluster     string   `yaml:"cluster" doc:"Envoy cluster that serves it."`
	Models      []string `yaml:"models" doc:"Models it serves; \"*\" is every model."`
	DisplayName string   `yaml:"displayName" doc:"Name shown by the status action; never shown when it contains @."`
	Provider    string   `yaml:"provider" doc:"Provider shown by the status action."`
}

// StoreSettings choose the store: embedded, or redis when redis.addrs is set.
type StoreSettings struct {
	Embedded     bool          `yaml:"embedded" doc:"Runs an in-process store, for one replica."`
	EmbeddedPath string        `yaml:"embeddedPath" doc:"File in which the in-process store keeps leases over a restart; empty keeps none."`
	Redis        RedisSettings `yaml:"redis" doc:"An external Redis or Valkey."`
}

// RedisSettings address a single node, a Sentinel group or a Cluster.
type RedisSettings struct {
	Kind                 string        `yaml:"kind" enum:"single,sentinel,cluster" doc:"What addrs point to."`
	Addrs                []string      `yaml:"addrs" doc:"host:port list."`
	MasterName           string        `yaml:"masterName" doc:"Name of the master at the sentinels."`
	DB                   int           `yaml:"db" min:"0" max:"1000" doc:"Database number (not with cluster)."`
	Username             string        `yaml:"username" doc:"ACL user."`
	PasswordFile         string        `yaml:"passwordFile" doc:"File that holds the password."`
	SentinelUsername     string        `yaml:"sentinelUsername" doc:"ACL user at the sentinels."`
	SentinelPasswordFile string        `yaml:"sentinelPasswordFile" doc:"File that holds the sentinels' password."`
	TLS                  TLSSettings   `yaml:"tls" doc:"Transport security."`
	CallTimeout          time.Duration `yaml:"callTimeout" min:"1ms" max:"10s" doc:"Deadline of one attempt of one call; calls that fail are tried again for about 250ms."`
	DialTimeout          time.Duration `yaml:"dialTimeout" min:"1ms" max:"30s" doc:"Deadline of one connection attempt."`
	PoolSize             int           `yaml:"poolSize" min:"1" max:"10000" doc:"Connections per node."`
	WaitReplicas         int           `yaml:"waitReplicas" min:"0" max:"100" doc:"Replicas that must confirm what clients are told (WAIT); 0 asks none."`
	KeyPrefix            string        `yaml:"keyPrefix" doc:"Prefix of every key."`
}

// TLSSettings of the store's connections.
type TLSSettings struct {
	Enabled    bool   `yaml:"enabled" doc:"Uses TLS."`
	CAFile     string `yaml:"caFile" doc:"CA certificates; empty uses the system's."`
	CertFile   string `yaml:"certFile" doc:"Client certificate."`
	KeyFile    string `yaml:"keyFile" doc:"Key of the client certificate."`
	ServerName string `yaml:"serverName" doc:"Name to verify instead of the dialled host."`
}

// Principal is a caller known by its API key.
type Principal struct {
	ID          string   `yaml:"id" required:"true" doc:"Identifier, also usable as tenant."`
	KeySHA256   string   `yaml:"keySHA256" doc:"Lower-case hex SHA-256 of the API key (extproc hash-key prints it)."`
	Scopes      []string `yaml:"scopes" doc:"Scopes; lease:exclusive makes the principal managed."`
	Connections []string `yaml:"connections" doc:"Connections a managed principal may bind to; must not be empty for one."`
}

// DefaultSettings are the documented defaults.
func DefaultSettings() Settings {
	return Settings{
		Store: StoreSettings{Embedded: true, Redis: RedisSettings{
			Kind: "single", CallTimeout: 25 * time.Millisecond, DialTimeout: 250 * time.Millisecond, PoolSize: 16, KeyPrefix: "headgate",
		}},
		TTL: 120 * time.Second, MaxHold: 30 * time.Minute, RenewInFlight: true, OnLost: "keep", OnStoreError: "deny",
		Cooldown: CooldownSettings{
			Default: 30 * time.Second, Max: 10 * time.Minute, Statuses: []int{429}, AuthStatuses: []int{401, 402, 403},
		},
		AcquireRate: 50, History: 1000,
	}
}

// used are the settings that the chosen store looks at: a change of others leaves it alone.
func (s StoreSettings) used() StoreSettings {
	if len(s.Redis.Addrs) == 0 {
		return StoreSettings{Embedded: s.Embedded, EmbeddedPath: s.EmbeddedPath, Redis: RedisSettings{KeyPrefix: s.Redis.KeyPrefix}}
	}
	s.Embedded, s.EmbeddedPath = false, ""
	if s.Redis.Kind != "sentinel" {
		s.Redis.MasterName, s.Redis.SentinelUsername, s.Redis.SentinelPasswordFile = "", "", ""
	}
	if !s.Redis.TLS.Enabled {
		s.Redis.TLS = TLSSettings{}
	}
	return s
}
