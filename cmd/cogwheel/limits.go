package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/redis/go-redis/v9"
)

// limit shows a rate limit, lists those of a prefix, or resets one.
func limit(ctx context.Context, t *tool) error {
	switch {
	case t.rows < 1:
		return usageError("--rows must be at least 1")
	case t.scan < 1:
		return usageError("--scan must be at least 1")
	case t.burst != 0 && t.rate == "":
		return usageError("--burst needs --rate")
	case t.yes && t.verb != "reset":
		return usageError("--yes is for limit reset")
	case t.rate != "" && t.verb != "":
		return usageError("--rate is for limit NAME")
	case t.verb == "keys":
		return t.limitKeys(ctx)
	case t.rate != "":
		ctx, cancel := context.WithTimeout(ctx, t.timeout)
		defer cancel()
		o, err := t.peek(ctx)
		if err != nil {
			return err
		}
		return t.report([]object{o}, "")
	case t.verb == "reset":
		return t.resetLimit(ctx)
	}
	if err := t.usePrefix(ctx); err != nil {
		return err
	}
	found, err := t.findWithin(ctx)
	if err != nil {
		return err
	}
	return t.report(only(found, object.isLimit), noLimit)
}

const noLimit = "there is no limit of that name; a key of a Limiter is there while permits of it are used: " +
	"give --prefix PREFIX KEY, or list those of a prefix by cogwheel limit keys PREFIX"

// usePrefix makes the key in Redis the name, if the flags tell a prefix.
func (t *tool) usePrefix(ctx context.Context) error {
	if t.prefix == "" {
		return nil
	}
	key, err := t.redisKey(ctx)
	if err == nil {
		t.name = key
	}
	return err
}

// limitKeys lists the keys of Limiters with a prefix, those nearest to their limit first.
func (t *tool) limitKeys(ctx context.Context) error {
	prefix := t.name
	if t.prefix != "" || strings.ContainsAny(prefix, "{}") {
		return usageError("limit keys takes the prefix of a Limiter alone, which has no braces")
	}
	var mu sync.Mutex // of a cluster, the masters are asked at the same time
	listed, complete, more := []report{}, true, false
	keep := func(ctx context.Context, node *redis.Client, keys []string) ([]string, error) {
		found, err := limitsOf(ctx, node, keys)
		mu.Lock()
		defer mu.Unlock()
		listed = nearest(append(listed, found...))
		more = more || len(listed) > t.rows
		listed = listed[:min(t.rows, len(listed))]
		return nil, err
	}
	escaped := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(prefix)
	err := t.eachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		_, done, err := t.scanKeys(ctx, node, escaped+":{*", "string", keep)
		mu.Lock()
		defer mu.Unlock()
		complete = complete && done
		return err
	})
	if err != nil {
		return err
	}
	t.noteIncomplete(complete)
	if more {
		printf(t.note, "cogwheel: there are more than %d keys; see --rows\n", t.rows)
	}
	switch {
	case t.json:
		return t.printJSON(listed)
	case len(listed) == 0:
		return fmt.Errorf("%w: no permits are used under the prefix %s; the prefix is the first argument of "+
			"Client.Limiter in the code", errNotFound, quote(prefix))
	}
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	for _, r := range listed {
		printf(w, "%s\t%s\t%s\n", quote(r.Name), r.Objects[0].Kind, r.Objects[0].Limit.use())
	}
	return w.Flush()
}

// limitsOf returns the states of Limiters among keys.
func limitsOf(ctx context.Context, node redis.Cmdable, keys []string) (found []report, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	pipe := node.Pipeline()
	values, ttls := make([]*redis.StringCmd, len(keys)), make([]*redis.DurationCmd, len(keys))
	for i, key := range keys {
		values[i], ttls[i] = pipe.Get(ctx, key), pipe.PTTL(ctx, key)
	}
	_, err = pipe.Exec(ctx)
	if isGone(err) {
		err = nil
	}
	for i, key := range keys {
		seen := traces{value: values[i].Val(), ttl: ttls[i].Val()}
		if _, ok := parseLimiter(key); !ok || values[i].Err() != nil {
			continue
		}
		switch kind := limiterKind(key, seen); kind {
		case kindGCRA, kindWindow, kindSliding:
			found = append(found, report{key, []object{limiterState(key, kind, seen)}})
		}
	}
	return found, err
}

// isGone reports whether an error tells that a key has expired since, or become another.
func isGone(err error) bool {
	return errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE")
}

// limiterState returns what Redis knows of a key of a Limiter without the limit.
func limiterState(key, kind string, seen traces) object {
	full := max(0, millisOf(seen.ttl)) // the state expires when the whole burst is there again
	s := &limitState{Key: key, Full: &full}
	var used int64
	switch kind {
	case kindWindow:
		text, _, _ := strings.Cut(seen.value, ":")
		used, _ = strconv.ParseInt(text, 10, 64)
		s.Used = &used
	case kindSliding:
		used = slidingUsed(seen.value, int64(full))
		s.Used = &used
	}
	return object{Kind: kind, Limit: s}
}

// nearest sorts keys by nearestToLimit, and drops those that are there already: SCAN may return a key twice.
func nearest(listed []report) []report {
	slices.SortFunc(listed, nearestToLimit)
	seen := map[string]bool{}
	return slices.DeleteFunc(listed, func(r report) bool {
		double := seen[r.Name]
		seen[r.Name] = true
		return double
	})
}

// nearestToLimit orders the keys of one limit by their used permits, which GCRA knows as the time until the whole burst
// is there again.
func nearestToLimit(a, b report) int {
	x, y := a.Objects[0], b.Objects[0]
	used := func(o object) int64 {
		if o.Limit.Used == nil {
			return 0
		}
		return *o.Limit.Used
	}
	return cmp.Or(cmp.Compare(x.Kind, y.Kind), -cmp.Compare(used(x), used(y)),
		-cmp.Compare(*x.Limit.Full, *y.Limit.Full), cmp.Compare(a.Name, b.Name))
}

// use is a line about the used permits of a key.
func (s *limitState) use() string {
	text := "full in " + s.Full.String()
	if s.Used != nil {
		text = fmt.Sprintf("used %d, %s", *s.Used, text)
	}
	return text
}

// resetDone is the answer of limit reset.
type resetDone struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Reset bool   `json:"reset"`
}

// resetLimit makes the whole burst of a key of a Limiter available again, as Limiter.Reset does. It needs no right that
// the service does not have.
func (t *tool) resetLimit(ctx context.Context) error {
	if err := t.usePrefix(ctx); err != nil {
		return err
	}
	if _, ok := parseLimiter(t.name); !ok {
		return usageError(noLimiterKey)
	}
	found, err := t.limitWithin(ctx)
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return fmt.Errorf("%w: %s: %s", errNotFound, quote(t.name), noLimit)
	}
	o := found[0].Objects[0]
	question := fmt.Sprintf("reset %s, a %s, %s? [y/N] ", quote(t.name), o.Kind, o.Limit.use())
	if !t.yes && !t.confirm(ctx, question) {
		return usageError("nothing was changed: answer y, or add --yes")
	}
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	if err := t.rdb.Del(ctx, t.name).Err(); err != nil {
		return err
	}
	if t.json {
		return t.printJSON(resetDone{t.name, o.Kind, true})
	}
	printf(t.out, "%s: reset: all permits can be used\n", quote(t.name))
	return nil
}

// limitWithin returns the state of the key, if it is one of a Limiter.
func (t *tool) limitWithin(ctx context.Context) ([]report, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	return limitsOf(ctx, t.rdb, []string{t.name})
}
