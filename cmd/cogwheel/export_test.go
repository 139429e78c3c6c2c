package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Run runs a command line without input and returns the exit status.
func Run(ctx context.Context, args []string, redisURL string, stdout, stderr io.Writer) int {
	return run(ctx, args, redisURL, streams{strings.NewReader(""), stdout, stderr})
}

// RunAnswering is Run with an input.
func RunAnswering(ctx context.Context, stdin io.Reader, args []string, redisURL string, stdout, stderr io.Writer) int {
	return run(ctx, args, redisURL, streams{stdin, stdout, stderr})
}

// Inspect runs inspect with a client.
func Inspect(ctx context.Context, rdb redis.UniversalClient, name string) error {
	return inspect(ctx, &tool{rdb: rdb, name: name, out: io.Discard, note: io.Discard})
}

// List runs list with a client.
func List(ctx context.Context, rdb redis.UniversalClient, timeout time.Duration) error {
	t := &tool{rdb: rdb, out: io.Discard, note: io.Discard}
	t.timeout, t.scan = timeout, 10*page
	return t.runWithin(ctx, commands["list"])
}

// Nearest returns the keys that limit keys lists, with their used permits: it gets key, used, key, used.
func Nearest(keys ...any) (listed []string) {
	var all []report
	for i := 0; i < len(keys); i += 2 {
		used, full := int64(keys[i+1].(int)), millis(1000)
		limit := &limitState{Used: &used, Full: &full}
		all = append(all, report{keys[i].(string), []object{{Kind: kindWindow, Limit: limit}}})
	}
	for _, r := range nearest(all) {
		listed = append(listed, fmt.Sprint(r.Name, " ", *r.Objects[0].Limit.Used))
	}
	return listed
}
