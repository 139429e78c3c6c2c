//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// choices are redis.Options to compare.
var choices = []struct {
	what string
	set  func(*redis.Options)
}{
	{"the defaults", func(*redis.Options) {}},
	{"`ReadTimeout: 1s`", func(o *redis.Options) { o.ReadTimeout = time.Second }},
	{"`ReadTimeout: 1s, MaxRetries: 1`", func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Second, 1 }},
	{"`ReadTimeout: 1s, MaxRetries: -1`", func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Second, -1 }},
	{"`ReadTimeout: 300ms, MaxRetries: 1`", func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 300*time.Millisecond, 1 }},
	{"`ReadTimeout: 1s, MaxRetries: 1, PoolSize: 4`", func(o *redis.Options) {
		o.ReadTimeout, o.MaxRetries, o.PoolSize = time.Second, 1, 4
	}},
	{"`ContextTimeoutEnabled: true`", func(o *redis.Options) { o.ContextTimeoutEnabled = true }},
}

// lockFigures are what the users of locks saw.
type lockFigures struct {
	call, slowest, deadline, lost, back time.Duration
	err                                 error
}

// compareOptions measures each choice on a server of its own, all at the same time, and prints a table.
func compareOptions(hang time.Duration) error {
	redis.SetLogger(silent{})
	fmt.Println("| `redis.Options` | `TryLock` returns after | the slowest of 100 at a time | with a deadline of 50 ms | " +
		"loss of a lease of 4 s announced after | first `TryLock` after Redis is back |")
	fmt.Println("|---|---:|---:|---:|---:|---:|")
	found := make([]lockFigures, len(choices))
	var measuring sync.WaitGroup
	for i, choice := range choices {
		measuring.Go(func() { found[i] = measureLocks(hang, choice.set) })
	}
	measuring.Wait()
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
	var errs []error
	for i, f := range found {
		errs = append(errs, f.err)
		fmt.Printf("| %s | %s | %s | %d ms | %s | %d ms |\n", choices[i].what, seconds(f.call), seconds(f.slowest),
			f.deadline.Milliseconds(), seconds(f.lost), f.back.Milliseconds())
	}
	return errors.Join(errs...)
}

func measureLocks(hang time.Duration, set func(*redis.Options)) (f lockFigures) {
	server, err := startRedis()
	if err != nil {
		f.err = err
		return f
	}
	defer server.stop()
	o := &redis.Options{Addr: server.addr}
	set(o)
	rdb := redis.NewClient(o)
	defer rdb.Close()
	locks, err := redislock.New(rdb, redislock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		f.err = err
		return f
	}
	f.err = f.during(server, locks, hang)
	return f
}

// during has the server hang, and makes calls.
func (f *lockFigures) during(server *redisServer, locks *redislock.Client, hang time.Duration) error {
	ctx := context.Background()
	held, err := locks.Mutex("held", redislock.WithLease(4*time.Second)).TryLock(ctx)
	if err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // it was renewed once, and its connections are open
	began := time.Now()
	if err := server.hang(); err != nil {
		return err
	}
	announced := make(chan struct{})
	go func() {
		defer close(announced)
		<-held.Done()
		f.lost = time.Since(began)
	}()
	took := func(ctx context.Context, name string) time.Duration {
		sent := time.Now()
		if l, err := locks.Mutex(name).TryLock(ctx); err == nil {
			_ = l.Unlock(ctx)
		}
		return time.Since(sent)
	}
	bounded, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	f.deadline = took(bounded, "bounded")
	f.call = took(ctx, "alone")
	var calling sync.WaitGroup
	times := make([]time.Duration, 100)
	for i := range times {
		calling.Go(func() { times[i] = took(ctx, fmt.Sprintf("one of %d", i)) })
	}
	calling.Wait()
	<-announced
	for _, d := range times {
		f.slowest = max(f.slowest, d)
	}
	time.Sleep(time.Until(began.Add(hang)))
	if err := server.resume(); err != nil {
		return err
	}
	back := time.Now()
	for {
		bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
		l, err := locks.Mutex("after").TryLock(bounded)
		cancel()
		if err == nil {
			f.back = time.Since(back)
			return l.Unlock(ctx)
		}
		if time.Since(back) > time.Minute {
			return err
		}
	}
}
