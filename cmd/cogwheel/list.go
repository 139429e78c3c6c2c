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

// list shows what is held and the queues with tasks, under names that match a pattern.
func list(ctx context.Context, t *tool) error {
	if t.scan < 1 {
		return usageError("--scan must be at least 1")
	}
	pattern := cmp.Or(t.name, "*")
	names, complete, err := t.candidates(ctx, pattern)
	if err != nil {
		return err
	}
	listed := []report{}
	for _, name := range names {
		t.name = name
		found, err := t.findWithin(ctx)
		if _, unusable := errors.AsType[usageError](err); unusable {
			continue
		}
		if err != nil {
			return err
		}
		if found = only(found, object.isListed); len(found) > 0 {
			listed = append(listed, report{name, found})
		}
	}
	t.noteIncomplete(complete)
	switch {
	case t.json:
		return t.printJSON(listed)
	case len(listed) == 0:
		const none = "%w: no lock or permit is held, and no queue has tasks, under %s"
		return fmt.Errorf(none, errNotFound, quote(pattern))
	}
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	for _, r := range listed {
		for _, o := range r.Objects {
			printf(w, "%s\t%s\t%s\n", quote(r.Name), o.Kind, o.summary())
		}
	}
	return w.Flush()
}

// noteIncomplete tells of keys that were not looked at.
func (t *tool) noteIncomplete(complete bool) {
	if !complete {
		printf(t.note, "cogwheel: the list is not complete: there are more than %d keys; see --scan\n", t.scan)
	}
}

// findWithin is find with a timeout of its own.
func (t *tool) findWithin(ctx context.Context) ([]object, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	return t.find(ctx)
}

// isListed reports whether a lock or a permit is held, or a queue has tasks.
func (o object) isListed() bool {
	switch {
	case o.isLock():
		return o.Lock.Held
	case o.isSemaphore():
		return o.Permits.Held != nil && *o.Permits.Held > 0
	}
	return o.isQueue() && o.Queue.Pending+o.Queue.Claimed+o.Queue.Failed > 0
}

// summary is a line about what is held, or the tasks of a queue.
func (o object) summary() string {
	switch {
	case o.isSemaphore():
		return fmt.Sprintf("%d held, %d free", *o.Permits.Held, o.Permits.Free)
	case o.isQueue():
		return o.Queue.counts()
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

// ends are the ends of the keys that have the leases of held permits and the tasks of queues, with the types of these
// keys. Before them stands the name, in braces if it has none itself.
var ends = map[string]string{":timeout": "zset", ":fair:leases": "zset", ":delay:tasks": "hash"}

// candidates scans the keys for names that match a pattern. A lock, a semaphore or a queue may have each of them. The
// scan is complete if it has seen all keys.
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
		if err == nil {
			found, all, err = t.scanKeys(ctx, node, pattern, "string", keepStringLocks)
			add(found, all)
		}
		for end, kind := range ends {
			for _, match := range []string{pattern + end, "{" + pattern + "}" + end} {
				if err == nil && match != "{*}"+end { // the first one has found these
					found, all, err = t.scanKeys(ctx, node, match, kind, keepNames)
					add(found, all)
				}
			}
		}
		return err
	}
	err = t.eachMaster(ctx, scan)
	slices.Sort(names)
	return slices.Compact(names), complete, err
}

// eachMaster calls scan for each server that has keys, at the same time.
func (t *tool) eachMaster(ctx context.Context, scan func(context.Context, *redis.Client) error) error {
	if cluster, ok := t.rdb.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, scan)
	}
	return scan(ctx, t.rdb.(*redis.Client))
}

// scanKeys looks through the keys of a server for names. keep returns the names among the keys of a page.
func (t *tool) scanKeys(
	ctx context.Context, node *redis.Client, match, kind string,
	keep func(ctx context.Context, node *redis.Client, keys []string) ([]string, error),
) (names []string, complete bool, err error) {
	scan := func(cursor uint64, count int64) (uint64, error) {
		ctx, cancel := context.WithTimeout(ctx, t.timeout)
		defer cancel()
		keys, next, err := node.ScanType(ctx, cursor, match, count, kind).Result()
		if err == nil {
			keys, err = keep(ctx, node, keys)
		}
		names = append(names, keys...)
		return next, err
	}
	var cursor uint64
	for left := t.scan; left > 0; left -= page {
		if cursor, err = scan(cursor, min(left, page)); err != nil {
			return nil, false, err
		}
		if cursor == 0 {
			return names, true, nil
		}
	}
	return names, false, nil
}

// ofQueue matches the hashes of a queue. Their fields are the ids of tasks, which may look like those of holds.
var ofQueue = regexp.MustCompile(`:delay:(tasks|attempts|later|paused)$`)

// keepLocks returns the hashes that have the field of a hold.
func keepLocks(ctx context.Context, node *redis.Client, keys []string) (locks []string, err error) {
	keys = slices.DeleteFunc(keys, ofQueue.MatchString)
	return keepHolds(ctx, node, keys, func(pipe redis.Pipeliner, key string) func() []string {
		return pipe.HRandField(ctx, key, 2).Val // one may be the mode
	})
}

// keepStringLocks returns the strings that begin with the id of a hold of this library.
func keepStringLocks(ctx context.Context, node *redis.Client, keys []string) (locks []string, err error) {
	const longest = 60 // of what holdID matches
	return keepHolds(ctx, node, keys, func(pipe redis.Pipeliner, key string) func() []string {
		value := pipe.GetRange(ctx, key, 0, longest)
		return func() []string { return []string{value.Val()} }
	})
}

// keepHolds returns the keys of which ask reads the id of a hold.
func keepHolds(
	ctx context.Context, node *redis.Client, keys []string,
	ask func(pipe redis.Pipeliner, key string) (ids func() []string),
) (locks []string, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	pipe := node.Pipeline()
	asked := make([]func() []string, len(keys))
	for i, key := range keys {
		asked[i] = ask(pipe, key)
	}
	_, err = pipe.Exec(ctx)
	for i, key := range keys {
		if slices.ContainsFunc(asked[i](), holdID.MatchString) {
			locks = append(locks, key)
		}
	}
	if redis.HasErrorPrefix(err, "WRONGTYPE") { // a key became another since
		err = nil
	}
	return locks, err
}

// keepNames returns the names of semaphores and queues, of the keys with these ends.
func keepNames(_ context.Context, _ *redis.Client, keys []string) (names []string, err error) {
	for _, key := range keys {
		for end := range ends {
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
