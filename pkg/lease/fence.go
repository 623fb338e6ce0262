package lease

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// record is what an owner key says.
type record struct {
	connection                 string
	generation                 string
	principal                  string
	acquired, renewed, expires int64 // ms
}

// parseRecord reads what lua/common.lua calls the owner key.
func parseRecord(value string) (record, bool) {
	var f [7]string
	for i := range f {
		var more bool
		f[i], value, more = strings.Cut(value, " ")
		if more != (i < len(f)-1) {
			return record{}, false
		}
	}
	r := record{connection: f[0], generation: f[1], principal: f[2]}
	var errs [3]error
	r.acquired, errs[0] = strconv.ParseInt(f[3], 10, 64)
	r.renewed, errs[1] = strconv.ParseInt(f[4], 10, 64)
	r.expires, errs[2] = strconv.ParseInt(f[5], 10, 64)
	return r, errs == [3]error{}
}

// judged is what the fence says about a lease.
type judged struct {
	status string // VALID, RESTING, NONE or STALE
	record record
	now    int64 // ms, the store's clock
	rests  int64 // ms, until when the connection rests; with RESTING
}

// judge decides over what lua/check.lua has read. The rules are those of live_lease in lua/common.lua.
func judge(answer any, owner Owner, generation int64, principal string) (judged, error) {
	all, ok := answer.([]any)
	if !ok || (len(all) != 2 && len(all) != 5) {
		return judged{}, fmt.Errorf("%w: check answered %T of unexpected shape", errUnavailable, answer)
	}
	now, err := clock(all[len(all)-2], all[len(all)-1])
	if err != nil {
		return judged{}, err
	}
	j := judged{status: "NONE", now: now}
	if len(all) == 2 {
		return j, nil
	}
	r, ok := parseRecord(text(all[2]))
	if !ok || r.expires <= now || !holds(text(all[0]), owner, r.generation) {
		return j, nil
	}
	j.record = r
	if r.generation != strconv.FormatInt(generation, 10) || r.principal != principal {
		j.status = "STALE"
		return j, nil
	}
	j.status = "VALID"
	if until, err := strconv.ParseInt(text(all[1]), 10, 64); err == nil && until > now {
		j.status, j.rests = "RESTING", until
	}
	return j, nil
}

// holds says whether a holder field names this owner and generation, its first two words.
func holds(field string, owner Owner, generation string) bool {
	rest, ok := strings.CutPrefix(field, string(owner)+" ")
	return ok && strings.HasPrefix(rest, generation+" ")
}

// clock reads the answer of TIME as ms.
func clock(seconds, micros any) (int64, error) {
	s, err1 := strconv.ParseInt(text(seconds), 10, 64)
	us, err2 := strconv.ParseInt(text(micros), 10, 64)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("%w: a script answered without time", errUnavailable)
	}
	return s*1000 + us/1000, nil
}

// lease is the lease judged.
func (j judged) lease(p *pool) Lease {
	generation, _ := strconv.ParseInt(j.record.generation, 10, 64) // is the asked one
	return Lease{
		State: "ACTIVE", Outcome: j.status, Pool: p.name, Connection: j.record.connection, Generation: generation,
		AcquiredAt: time.UnixMilli(j.record.acquired).UTC(), RenewedAt: time.UnixMilli(j.record.renewed).UTC(),
		ExpiresAt: time.UnixMilli(j.record.expires).UTC(), validFor: time.Duration(j.record.expires-j.now) * time.Millisecond,
	}
}

// free decides over what lua/free.lua has read about candidates: the first that no live lease holds and that does not
// rest, or why there is none.
func free(answer any, candidates []string) (connection string, r *Refusal, err error) {
	all, ok := answer.([]any)
	if !ok || (len(all) != 2 && len(all) != 2*len(candidates)+2) {
		return "", nil, fmt.Errorf("%w: free answered %T of unexpected shape", errUnavailable, answer)
	}
	fields := all[:len(all)-2]
	now, err := clock(all[len(all)-2], all[len(all)-1])
	if err != nil {
		return "", nil, err
	}
	if len(fields) == 0 { // nothing was ever leased, or the pool's key is not ours
		return candidates[0], nil, nil
	}
	var soonest, awake int64
	eligible := 0
	for i, c := range candidates {
		until, _ := strconv.ParseInt(text(fields[2*i+1]), 10, 64) // 0 for none
		h, held := parseHolder(c, text(fields[2*i]))
		switch expires := h.expires.UnixMilli(); {
		case until > now:
			awake = earlier(awake, until)
		case !held || expires <= now:
			return c, nil, nil
		default:
			eligible++
			soonest = earlier(soonest, expires)
		}
	}
	if eligible > 0 {
		return "", refuseFor(CapacityUnavailable, time.Duration(soonest-now)*time.Millisecond, eligible), nil
	}
	return "", refuseFor(EligibilityUnavailable, time.Duration(awake-now)*time.Millisecond, 0), nil
}

// earlier is the smaller of two moments, of which the first may be unset.
func earlier(a, b int64) int64 {
	if a == 0 {
		return b
	}
	return min(a, b)
}
