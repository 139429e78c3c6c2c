package renewal_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// seats is a backend: something that gives out leases and prolongs many of them in one call.
type seats struct {
	mu    sync.Mutex
	taken map[string]string
}

func (s *seats) Renew(_ context.Context, b *renewal.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, lease := range b.Leases {
		b.Outcomes[i] = renewal.OutcomeGone
		if s.taken[lease.Key] == lease.ID {
			b.Outcomes[i] = renewal.OutcomeExtended // a server would set the expiry to lease.TTL from now
		}
	}
	return nil
}

// A lease of any kind is kept alive until it is closed or lost.
func ExampleRenewer() {
	w, err := wheel.New()
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	defer w.Stop(ctx)
	renewer, err := renewal.New(w)
	if err != nil {
		log.Fatal(err)
	}
	defer renewer.Close(ctx)

	hall := &seats{taken: map[string]string{"7A": "ann", "7B": "bob"}}
	destination, err := renewer.Destination(hall)
	if err != nil {
		log.Fatal(err)
	}
	before := w.Now() // the instant before the seats were asked for
	lease := func(seat, holder string) *renewal.Lease {
		l, err := destination.Add(renewal.Spec{Key: seat, ID: holder, TTL: 3 * time.Second, SentAt: before})
		if err != nil {
			log.Fatal(err)
		}
		return l
	}
	ann, bob := lease("7A", "ann"), lease("7B", "bob")

	hall.mu.Lock()
	hall.taken["7B"] = "eve" // the seat is given to another
	hall.mu.Unlock()

	<-bob.Done()
	fmt.Println(bob.ID(), "has lost", bob.Key(), errors.Is(bob.Err(), renewal.ErrGone))
	fmt.Println("ann:", ann.Close(nil), ann.Err())
	// Output:
	// bob has lost 7B true
	// ann: true renewal: lease released
}
