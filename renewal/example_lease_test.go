package renewal_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// rows is a backend on a table of leases. A database would do it in one statement for all leases:
// UPDATE leases SET expires = now() + ttl WHERE (key, id) IN (...) AND expires > now() RETURNING key.
type rows map[string]string // which id has a key; it is not changed while it is used here

func (r rows) Renew(ctx context.Context, b *renewal.Batch) error {
	if err := ctx.Err(); err != nil {
		return err // the outcomes stay Unknown: the leases are retried
	}
	for i, lease := range b.Leases {
		if r[lease.Key] == lease.ID {
			b.Outcomes[i] = renewal.Extended // by lease.TTL
		} else {
			b.Outcomes[i] = renewal.Gone
		}
	}
	return nil
}

// unreachable is a backend that is down.
type unreachable struct{}

func (unreachable) Renew(context.Context, *renewal.Batch) error {
	return errors.New("connection refused")
}

// exampleRenewer returns the Renewer that a process makes once: renewal.New(wheel.Default()).
func exampleRenewer() (r *renewal.Renewer, done func()) {
	w, err := wheel.New()
	if err != nil {
		log.Fatal(err)
	}
	if r, err = renewal.New(w, renewal.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
		log.Fatal(err)
	}
	return r, func() {
		_ = r.Close(context.Background())
		_, _ = w.Stop(context.Background())
	}
}

// Options say where losses are reported.
func ExampleNew() {
	ctx := context.Background()
	w, err := wheel.New()
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop(ctx)
	renewer, err := renewal.New(w,
		renewal.WithLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil))),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer renewer.Close(ctx)
	fmt.Println("shortest lease:", renewer.MinTTL())

	_, err = renewal.New(nil)
	fmt.Println(errors.Is(err, cogwheel.ErrInvalid))
	// Output:
	// shortest lease: 10ms
	// true
}

// A backend of one's own renews many leases in one request, and says of each what became of it.
func ExampleBackend() {
	var table renewal.Backend = rows{"shard-1": "worker-a", "shard-2": "worker-b"}
	batch := &renewal.Batch{ // as the Renewer makes it
		Leases: []renewal.Ref{
			{Key: "shard-1", ID: "worker-a", TTL: 10 * time.Second},
			{Key: "shard-2", ID: "worker-a", TTL: 10 * time.Second}, // is worker-b's by now
		},
		Outcomes: make([]renewal.Outcome, 2),
	}
	if err := table.Renew(context.Background(), batch); err != nil {
		log.Fatal(err)
	}
	fmt.Println(batch.Outcomes[0] == renewal.Extended, batch.Outcomes[1] == renewal.Gone)
	// Output: true true
}

// The lease counts from the instant before it was asked for. Work with its context ends with it.
func ExampleDestination_Add() {
	renewer, done := exampleRenewer()
	defer done()
	table, err := renewer.Destination(rows{"shard-1": "worker-a"})
	if err != nil {
		log.Fatal(err)
	}

	before := time.Now()
	// ... INSERT INTO leases ... here ...
	lease, err := table.Add(renewal.Spec{Key: "shard-1", ID: "worker-a", TTL: 10 * time.Second, SentAt: before})
	if err != nil {
		log.Fatal(err) // give the lease back
	}
	work := lease.Context(context.Background())
	fmt.Println(lease.Key(), lease.ID(), lease.Valid(), work.Err())

	fmt.Println(lease.Close(nil)) // then give it back: DELETE FROM leases ...
	<-work.Done()
	fmt.Println(errors.Is(context.Cause(work), renewal.ErrReleased))
	// Output:
	// shard-1 worker-a true <nil>
	// true
	// true
}

// While the backend is down a lease lasts until its deadline, before which its holder is told.
func ExampleLostError() {
	renewer, done := exampleRenewer()
	defer done()
	down, err := renewer.Destination(unreachable{})
	if err != nil {
		log.Fatal(err)
	}
	lease, err := down.Add(renewal.Spec{Key: "shard-1", ID: "worker-a", TTL: 2 * time.Second, SentAt: time.Now()})
	if err != nil {
		log.Fatal(err)
	}
	<-lease.Done()
	if lost, ok := errors.AsType[*renewal.LostError](lease.Err()); ok {
		fmt.Println(lost.Key, "is lost; the deadline passed:", errors.Is(lost, renewal.ErrExpired))
	}
	// Output: shard-1 is lost; the deadline passed: true
}

// OnLost is called for an end that the holder has not asked for. Lost gives it an error of the caller's own.
func ExampleSpec() {
	renewer, done := exampleRenewer()
	defer done()
	table, err := renewer.Destination(rows{}) // the lease was removed
	if err != nil {
		log.Fatal(err)
	}
	errShardLost := errors.New("shard lost")
	ended := make(chan error, 1)
	_, err = table.Add(renewal.Spec{
		Key: "shard-1", ID: "worker-a", TTL: 2 * time.Second, SentAt: time.Now(),
		Lost: errShardLost, OnLost: func(err error) { ended <- err },
	})
	if err != nil {
		log.Fatal(err)
	}
	err = <-ended // at the first renewal
	fmt.Println(errors.Is(err, errShardLost), errors.Is(err, renewal.ErrLost))
	// Output: true true
}

// Watch only tells when a lease ends that is not renewed. Prolong says that it was prolonged by other means.
func ExampleRenewer_Watch() {
	renewer, done := exampleRenewer()
	defer done()
	session, err := renewer.Watch(renewal.Spec{Key: "session-7", ID: "ada", TTL: time.Minute, SentAt: time.Now()})
	if err != nil {
		log.Fatal(err)
	}
	sentAt := time.Now()
	// ... prolong the session at its server ...
	fmt.Println(session.Prolong(sentAt, time.Hour), time.Until(session.Deadline()) > 50*time.Minute)

	fmt.Println(session.Gone()) // the server says that it was ended
	fmt.Println(errors.Is(session.Err(), renewal.ErrGone))
	// Output:
	// true true
	// true
	// true
}

// A Renewer that is closed ends its leases; giving them back is the holders' part.
func ExampleRenewer_Close() {
	renewer, done := exampleRenewer()
	defer done()
	table, err := renewer.Destination(rows{"shard-1": "worker-a"})
	if err != nil {
		log.Fatal(err)
	}
	spec := renewal.Spec{Key: "shard-1", ID: "worker-a", TTL: 10 * time.Second, SentAt: time.Now()}
	lease, err := table.Add(spec)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(renewer.Len(), renewer.Close(context.Background()))
	fmt.Println(errors.Is(lease.Err(), renewal.ErrClosed))
	_, err = table.Add(spec)
	fmt.Println(errors.Is(err, renewal.ErrClosed))
	// Output:
	// 1 <nil>
	// true
	// true
}

// A lease that is too short could not be renewed in time. It is refused.
func ExampleInvalidError() {
	renewer, done := exampleRenewer()
	defer done()
	_, err := renewer.Watch(renewal.Spec{Key: "session-7", ID: "ada", TTL: time.Microsecond, SentAt: time.Now()})
	if invalid, ok := errors.AsType[*cogwheel.InvalidError](err); ok {
		fmt.Println(invalid.Field, "is refused:", invalid.Value)
	}
	// Output: TTL is refused: 1µs
}

// Hooks are where metrics and traces are made.
func ExampleHooks() {
	ctx := context.Background()
	w, err := wheel.New()
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop(ctx)
	events := make(chan renewal.Event, 1)
	renewer, err := renewal.New(w,
		renewal.WithHooks(renewal.Hooks{Lost: func(e renewal.Event) { events <- e }}),
		renewal.WithLogger(slog.New(slog.DiscardHandler)),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer renewer.Close(ctx)

	session, err := renewer.Watch(renewal.Spec{Key: "session-7", ID: "ada", TTL: time.Minute, SentAt: time.Now()})
	if err != nil {
		log.Fatal(err)
	}
	session.Gone() // the server says that it was ended
	lost := <-events
	fmt.Println(lost.Key, lost.ID, errors.Is(lost.Err, renewal.ErrGone))
	// Output: session-7 ada true
}

// Stats are for metrics. They need no hooks.
func ExampleRenewer_Stats() {
	renewer, done := exampleRenewer()
	defer done()
	for _, key := range []string{"session-7", "session-8"} {
		session, err := renewer.Watch(renewal.Spec{Key: key, ID: "ada", TTL: time.Minute, SentAt: time.Now()})
		if err != nil {
			log.Fatal(err)
		}
		if key == "session-7" {
			session.Gone() // the server says that it was ended
		}
	}
	stats := renewer.Stats()
	fmt.Println("leases:", stats.Leases, "lost:", stats.Lost, "failed calls:", stats.Failures)
	// Output: leases: 1 lost: 1 failed calls: 0
}
