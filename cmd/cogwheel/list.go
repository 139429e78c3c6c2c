package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/redis/go-redis/v9"
)

// page is how many keys one SCAN looks at.
const page = 1000

// holdID is the beginning of the field that a hold has in the hash of its lock, here and in Java.
var holdID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+`)

// list shows what is held under names that match a pattern.
func list(ctx context.Context, t *tool) error {
	if t.scan < 1 {
		return usageError("--scan must be at least 1")
	}
	pattern := cmp.Or(t.name, "*")
	names, complete, err := t.candidates(ctx, pattern)
	if err != nil {
		return err
	}
	held := []report{}
	for _, name := range names {
		t.name = name
		found, err := t.find(ctx)
		if _, unusable := errors.AsType[usageError](err); unusable {
			continue
		}
		if err != nil {
			return err
		}
		if found = only(found, object.isHeld); len(found) > 0 {
			held = append(held, report{name, found})
		}
	}
	if !complete {
		printf(t.note, "cogwheel: the list is not complete: there are more than %d keys; see --scan\n", t.scan)
	}
	switch {
	case t.json:
		return t.printJSON(held)
	case len(held) == 0:
		return fmt.Errorf("%w: no lock or permit is held under %s", errNotFound, quote(pattern))
	}
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	for _, r := range held {
		for _, o := range r.Objects {
			printf(w, "%s\t%s\t%s\n", quote(r.Name), o.Kind, o.summary())
		}
	}
	return w.Flush()
}

// isHeld reports whether a lock or a permit is held.
func (o object) isHeld() bool {
	return o.isLock() && o.Lock.Held || o.isSemaphore() && o.Permits.Held != nil && *o.Permits.Held > 0
}

// summary is a line about what is held.
func (o object) summary() string {
	if o.isSemaphore() {
		return fmt.Sprintf("%d held, %d free", *o.Permits.Held, o.Permits.Free)
	}
	text := "held, lease " + o.Lock.TTL.String()
	for i, h := range o.Lock.Holders {
		if i == 3 {
			return text + fmt.Sprintf(", and by %d more", len(o.Lock.Holders)-i)
		}
		h.TTL = nil
		text += ", by " + strings.Join(h.words(), " ")
	}
	return text
}

// leases are the ends of the keys that have the leases of held permits. Before them stands the name, in braces if it
// has none itself.
var leases = []string{":timeout", ":fair:leases"}

// candidates scans the keys for names that match a pattern. Something may be held under each of them. The scan is
// complete if it has seen all keys.
func (t *tool) candidates(ctx context.Context, pattern string) (names []string, complete bool, err error) {
	var mu sync.Mutex // of a cluster, the masters are asked at the same time
	complete = true
	add := func(found []string, all bool) {
		mu.Lock()
		defer mu.Unlock()
		names, complete = append(names, found...), complete && all
	}
	scan := func(ctx context.Context, node *redis.Client) error {
		found, all, err := t.scanKeys(ctx, node, pattern, "hash", keepLocks)
		add(found, all)
		for _, end := range leases {
			for _, match := range []string{"{" + pattern + "}" + end, pattern + end} {
				if err == nil {
					found, all, err = t.scanKeys(ctx, node, match, "zset", keepNames)
					add(found, all)
				}
			}
		}
		return err
	}
	if cluster, ok := t.rdb.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, scan)
	} else {
		err = scan(ctx, t.rdb.(*redis.Client))
	}
	slices.Sort(names)
	return slices.Compact(names), complete, err
}

// scanKeys looks through the keys of a server for names. keep returns the names among the keys of a page.
func (t *tool) scanKeys(
	ctx context.Context, node *redis.Client, match, kind string,
	keep func(ctx context.Context, node *redis.Client, keys []string) ([]string, error),
) (names []string, complete bool, err error) {
	var cursor uint64
	for left := t.scan; left > 0; left -= page {
		var keys []string
		if keys, cursor, err = node.ScanType(ctx, cursor, match, min(left, page), kind).Result(); err != nil {
			return nil, false, err
		}
		if keys, err = keep(ctx, node, keys); err != nil {
			return nil, false, err
		}
		if names = append(names, keys...); cursor == 0 {
			return names, true, nil
		}
	}
	return names, false, nil
}

// keepLocks returns the hashes that have the field of a hold.
func keepLocks(ctx context.Context, node *redis.Client, keys []string) (locks []string, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	pipe := node.Pipeline()
	fields := make([]*redis.StringSliceCmd, len(keys))
	for i, key := range keys {
		fields[i] = pipe.HRandField(ctx, key, 2) // one may be the mode
	}
	_, err = pipe.Exec(ctx)
	for i, key := range keys {
		if slices.ContainsFunc(fields[i].Val(), holdID.MatchString) {
			locks = append(locks, key)
		}
	}
	if redis.HasErrorPrefix(err, "WRONGTYPE") { // a key became another since
		err = nil
	}
	return locks, err
}

// keepNames returns the names of semaphores, of the keys of their leases.
func keepNames(_ context.Context, _ *redis.Client, keys []string) (names []string, err error) {
	for _, key := range keys {
		for _, end := range leases {
			name, ok := strings.CutSuffix(key, end)
			if !ok {
				continue
			}
			if inner := strings.Trim(name, "{}"); name == "{"+inner+"}" && !strings.ContainsAny(inner, "{}") {
				name = inner
			}
			names = append(names, name)
		}
	}
	return names, nil
}

// build is what version tells.
type build struct {
	Version string `json:"version"`
	Go      string `json:"go"`
}

func version(_ context.Context, t *tool) error {
	b := build{Version: "(devel)", Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Version = cmp.Or(info.Main.Version, b.Version)
	}
	if t.json {
		return t.printJSON(b)
	}
	printf(t.out, "cogwheel %s %s %s/%s\n", b.Version, b.Go, runtime.GOOS, runtime.GOARCH)
	return nil
}
