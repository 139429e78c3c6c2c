package main

import (
	"context"
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
