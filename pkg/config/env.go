package config

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

const (
	envPrefix = "HEADGATE_"
	// EnvFile is the variable that names the configuration file when no path is given.
	EnvFile = "HEADGATE_CONFIG"
)

// noEffectNames are variables of the reference system that are accepted, because deployments have them, and ignored:
// the per-session controllers they sized do not exist here.
func noEffectNames() []string {
	return []string{"OMNIROUTE_CHAT_VIRTUAL_TTL_MS", "OMNIROUTE_CHAT_VIRTUAL_MAX_SESSIONS"}
}

// aliasPrefixes are what the reference system's variables start with.
func aliasPrefixes() []string {
	return []string{"ADAPTIVE_ADMISSION_", "OMNIROUTE_CHAT_", "OMNIROUTE_PRESSURE_"}
}

// environment holds the variables that are set. Values are trimmed; an empty one counts as not set, as with manifests
// that pass a variable on whether or not it has a value. Of a name given twice the first counts, as in os.Getenv.
func environment(environ []string) map[string]string {
	env := map[string]string{}
	seen := map[string]bool{}
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || seen[name] {
			continue
		}
		seen[name] = true
		if value = strings.TrimSpace(value); value != "" {
			env[name] = value
		}
	}
	return env
}

// staticLeaves are the values outside maps and lists. Each has a HEADGATE_ name; some have an alias too.
func staticLeaves() []leaf { return leavesOf(reflect.TypeFor[Config](), "") }

// clusterLeaves are the values of a cluster entry that have an alias.
func clusterLeaves() []leaf {
	return slices.DeleteFunc(leavesOf(reflect.TypeFor[Cluster](), join("clusters", AnyCluster)), func(l leaf) bool {
		return l.field.alias == ""
	})
}

// envName derives HEADGATE_BYTES_QUEUE_MAX_WAIT from bytes.queue.maxWait.
func envName(path string) string {
	var b strings.Builder
	b.WriteString(envPrefix)
	runes := []rune(path)
	for i, r := range runes {
		switch {
		case r == '.':
			r = '_'
		case unicode.IsUpper(r) && i > 0 && runes[i-1] != '.':
			endsAcronym := i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if !unicode.IsUpper(runes[i-1]) || endsAcronym {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}

// applyClusterEnv sets what every cluster starts from. It runs before the file, which therefore wins.
func applyClusterEnv(r *report, c *Config, env map[string]string) {
	ground := c.Clusters[AnyCluster]
	for _, l := range clusterLeaves() {
		l.fromEnv(r, reflect.ValueOf(&ground).Elem(), env, "")
	}
	c.Clusters[AnyCluster] = ground
}

// applyEnv sets everything outside maps and lists. It runs after the file and wins.
func applyEnv(r *report, c *Config, env map[string]string) {
	for _, l := range staticLeaves() {
		l.fromEnv(r, reflect.ValueOf(c).Elem(), env, envName(l.path))
	}
}

// fromEnv sets the leaf from its alias or its own name. Both may be set only to the same value.
func (l leaf) fromEnv(r *report, section reflect.Value, env map[string]string, own string) {
	var got reflect.Value
	var from string
	for _, name := range []string{l.field.alias, own} {
		text, ok := env[name]
		if name == "" || !ok {
			continue
		}
		v, err := l.field.parseEnv(text, name == l.field.alias && l.field.aliasMS)
		switch {
		case err != nil:
			r.addEnv(name, l.path, "%v", err)
		case got.IsValid() && !reflect.DeepEqual(got.Interface(), v.Interface()):
			r.addEnv(name, l.path, "conflicts with %s, which sets it to something else", from)
		default:
			got, from = v, name
		}
	}
	if got.IsValid() {
		l.field.assign(section.FieldByIndex(l.index), got)
		r.origins[l.path] = origin{env: from}
	}
}

func (f field) parseEnv(text string, milliseconds bool) (reflect.Value, error) {
	if f.stringList() {
		var list []string
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item == "" {
				continue
			}
			if _, err := f.element().parseScalar(item); err != nil {
				return reflect.Value{}, err
			}
			list = append(list, item)
		}
		return reflect.ValueOf(list), nil
	}
	if !milliseconds {
		return f.parseScalar(text)
	}
	d, err := parseMilliseconds(text)
	if err != nil {
		return reflect.Value{}, err
	}
	return f.parseScalar(d.String())
}

// checkNames refuses HEADGATE_ variables that mean nothing, which are typing errors, and notes variables of the
// reference system that have no effect. What Kubernetes injects for a Service called headgate is neither.
func checkNames(r *report, env map[string]string) {
	own := []string{EnvFile}
	aliases := map[string]bool{}
	for _, l := range staticLeaves() {
		own = append(own, envName(l.path))
		aliases[l.field.alias] = true
	}
	for _, l := range clusterLeaves() {
		aliases[l.field.alias] = true
	}
	service := serviceLink()
	var ignored, unknown []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		switch {
		case strings.HasPrefix(name, envPrefix):
			if !slices.Contains(own, name) && !service.MatchString(name) {
				r.addEnv(name, "", "unknown variable%s", suggest(name, own))
			}
		case aliases[name]:
		case slices.Contains(noEffectNames(), name):
			ignored = append(ignored, name)
		case slices.ContainsFunc(aliasPrefixes(), func(p string) bool { return strings.HasPrefix(name, p) }):
			unknown = append(unknown, name)
		}
	}
	if len(ignored) > 0 {
		r.note("accepted without effect, there are no controllers per session: %s", strings.Join(ignored, ", "))
	}
	if len(unknown) > 0 {
		r.note("ignored, nothing here has these names: %s", strings.Join(unknown, ", "))
	}
}

// serviceLink matches the variables of Kubernetes service links for Services whose names start with headgate.
func serviceLink() *regexp.Regexp {
	return regexp.MustCompile(`^HEADGATE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
}
