package recipes

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/cogwheel-go/cogwheel/renewal"
)

// LeaseServer is the client of a server that grants leases: a table of a database, or a service.
type LeaseServer interface {
	// Grant grants key to id for ttl, or returns an error if another has it.
	Grant(ctx context.Context, key, id string, ttl time.Duration) error
	// Extend makes each lease last for its TTL from now, in one request, and reports which of them it still knew.
	Extend(ctx context.Context, leases []renewal.Ref) (known []bool, err error)
	// GiveBack ends the lease if id has it.
	GiveBack(ctx context.Context, key, id string) error
}

// Backend is a renewal.Backend that renews the leases of a server.
type Backend struct{ LeaseServer }

// Renew renews the leases of a batch.
func (s Backend) Renew(ctx context.Context, batch *renewal.Batch) error {
	known, err := s.Extend(ctx, batch.Leases)
	if err != nil {
		return err // the outcomes stay Unknown: the leases are tried again until their deadlines
	}
	for i := range known {
		batch.Outcomes[i] = renewal.OutcomeExtended
		if !known[i] {
			batch.Outcomes[i] = renewal.OutcomeGone // lost at once
		}
	}
	return nil
}

// Leased calls f while it has the lease of key. The context of f ends with ctx, or if the lease is lost: the error then
// matches renewal.ErrLost. If Grant was slow, it matches that too, and f was not called: let f set a variable. Set-up,
// once per process:
//
//	renewals, err := renewal.New(wheel.Default())
//	leases, err := renewals.Destination(Backend{server})
//	err = Leased(ctx, server, leases, "shard-3", 30*time.Second, f)
//	err = renewals.Close(closing) // at the end, with a deadline
func Leased(
	ctx context.Context, server LeaseServer, leases *renewal.Destination, key string, ttl time.Duration,
	f func(context.Context) error,
) (err error) {
	id := rand.Text()    // another one for each grant
	sentAt := time.Now() // the lease counts from before the request
	if err := server.Grant(ctx, key, id, ttl); err != nil {
		return err
	}
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl) // then the lease ends anyway
		defer cancel()
		err = errors.Join(err, server.GiveBack(within, key, id))
	}()
	lease, err := leases.Add(renewal.Spec{Key: key, ID: id, TTL: ttl, SentAt: sentAt})
	if err != nil {
		return err
	}
	defer lease.Close(nil) // ends the renewals, before GiveBack
	err = f(lease.Context(ctx))
	return errors.Join(err, lease.Err()) // Err is nil while the lease is held
}
