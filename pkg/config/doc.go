// Package config is the one typed schema of Headgate's configuration: defaults, file, environment, validation, reload.
//
// Invariants:
//
//   - A Config is immutable once Load returned it. A reload makes a new one; nobody writes to the old.
//   - Precedence is defaults < file < environment. The clusters map is the exception: environment settings of lanes are
//     the ground every cluster starts from, so per cluster and field it is default < environment < entry "*" < own entry.
//   - Loading is strict. An unknown key, a wrong type, a missing unit, a value out of range, a key given twice and an
//     unknown HEADGATE_ variable are faults. All faults are reported together, each with its path and where it came
//     from; nothing is ever silently replaced by a default.
//   - The struct tags are the schema: `yaml` the key, `env` the alias of the reference system, `min`, `max`, `enum` and
//     `required` the rules, `doc` the documentation, `restart` what a reload cannot bring into effect. Loader, redaction
//     and reference page all read the same tags.
//   - A reload that fails, in loading or in applying, leaves the running configuration alone.
//   - Secrets (fanout.secret, hashes of API keys) never reach an error, a log line, Redacted or Reference.
package config
