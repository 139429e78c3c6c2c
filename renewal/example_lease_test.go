package renewal_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

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

// OnLost is called for an end that the holder has not asked for. Lost gives it an error of the caller's own.
func ExampleSpec() {
	renewer, done := exampleRenewer()
	defer done()
	table, err := renewer.Destination(&seats{}) // the lease was removed
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

	fmt.Println(session.MarkLost()) // the server says that it was ended
	fmt.Println(errors.Is(session.Err(), renewal.ErrGone))
	// Output:
	// true true
	// true
	// true
}
