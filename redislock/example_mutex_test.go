package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// Lock waits for the lock and returns a Lock, which is this hold of it.
func ExampleClient_Mutex() {
	ctx := context.Background()
	locks := newLocks()

	stock := locks.Mutex("stock:7", redislock.WithLease(10*time.Second))
	lock, err := stock.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	fmt.Println(lock.Name(), "is held:", lock.Valid())
	// Output: stock:7 is held: true
}

// The context bounds the wait. It is not the time for which the lock is held.
func ExampleMutex_Lock() {
	ctx := context.Background()
	report := newLocks().Mutex("report")
	lock, err := report.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = report.Lock(short)
	switch {
	case errors.Is(err, redislock.ErrLocked):
		fmt.Println("gave up: another holds the lock;", errors.Is(err, context.DeadlineExceeded))
	case err != nil:
		log.Print("Redis: ", err)
	}
	// Output: gave up: another holds the lock; true
}

// When the process of a holder dies, the lock is free when its lease is over. The lease is thus how long others
// wait for it, not how long the work may take: a holder that lives renews it.
func ExampleMutex_Lock_holderCrashed() {
	ctx := context.Background()
	locks := newLocks()

	// Nothing renews this lock, as if its process had been killed a moment after it had locked.
	_, err := locks.Mutex("leader", redislock.WithLease(2*time.Second), redislock.WithoutRenewal()).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}

	successor, err := locks.Mutex("leader", redislock.WithLease(10*time.Second)).Lock(ctx) // waits for about two seconds
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("another process leads:", successor.Valid())
	fmt.Println(successor.Unlock(ctx))
	// Output:
	// another process leads: true
	// <nil>
}

// A key that holds something else is left alone.
func ExampleMutex_Lock_wrongKind() {
	ctx := context.Background()
	locks := newLocks()
	reader, err := locks.RWMutex("catalogue").RLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer reader.Unlock(ctx)

	_, err = locks.Mutex("catalogue").Lock(ctx) // the other services use an RWMutex
	fmt.Println(errors.Is(err, redislock.ErrWrongKind), reader.Valid())
	// Output: true true
}

// If the lock is lost, the context of the function ends, and Do returns ErrLost.
func ExampleMutex_Do_lost() {
	ctx := context.Background()
	leader := newLocks().Mutex("leader", redislock.WithLease(5*time.Second))

	err := leader.Do(ctx, func(held context.Context) error {
		// An operator frees the lock. This process learns of it by the next renewal.
		if _, err := leader.ForceUnlock(ctx); err != nil {
			return err
		}
		<-held.Done() // what the function calls with held returns now
		return context.Cause(held)
	})
	if errors.Is(err, redislock.ErrLost) {
		fmt.Println("stopped to lead")
	}
	// Output: stopped to lead
}

// One process leads at a time. Here the first term ends by an error, and the second with ctx.
func ExampleClient_Lead() {
	ctx, stop := context.WithCancel(context.Background())
	locks, terms := newLocks(), 0
	work := func(ctx context.Context) error {
		if terms++; terms == 1 {
			return errors.New("the database is down") // logged; another process may lead now
		}
		fmt.Println("leads:", redislock.FromContext(ctx, "orders:leader").Valid())
		stop() // the service shuts down
		<-ctx.Done()
		return ctx.Err()
	}
	err := locks.Lead(ctx, "orders:leader", work, redislock.WithLease(10*time.Second))
	fmt.Println("terms:", terms, errors.Is(err, context.Canceled))
	// Output:
	// leads: true
	// terms: 2 true
}

// A caller that would rather do something else than wait learns how long the lock may be held.
func ExampleLockedError() {
	ctx := context.Background()
	backup := newLocks().Mutex("backup", redislock.WithLease(10*time.Minute))
	lock, err := backup.TryLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	_, err = backup.TryLock(ctx)
	if locked, ok := errors.AsType[*redislock.LockedError](err); ok {
		fmt.Printf("%s is locked, for %v unless it is renewed\n", locked.Name, locked.TTL.Round(time.Minute))
	}
	// Output: backup is locked, for 10m0s unless it is renewed
}

// cancel ends the wait of LockFunc.
func ExampleMutex_LockFunc_cancel() {
	ctx := context.Background()
	seat := newLocks().Mutex("seat:7A")
	lock, err := seat.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Unlock(ctx)

	ended := make(chan error)
	cancel := seat.LockFunc(ctx, func(l *redislock.Lock, err error) {
		defer l.Unlock(ctx) // harmless on a nil Lock
		ended <- err
	})
	cancel() // the visitor has left
	fmt.Println(errors.Is(<-ended, context.Canceled))
	// Output: true
}

// State shows what Redis knows of a lock, for an operator. ForceUnlockHolder then frees it from that holder
// only, not from one that has taken the lock since.
func ExampleMutex_State() {
	ctx := context.Background()
	migration := newLocks().Mutex("migration",
		redislock.WithMetadata("host-3, deploy 1841"), redislock.WithLease(5*time.Minute))
	if _, err := migration.Lock(ctx); err != nil {
		log.Fatal(err)
	}

	state, err := migration.State(ctx)
	if err != nil {
		log.Fatal(err)
	}
	holder := state.Holders[0]
	fmt.Println(state.Locked, holder.Metadata, state.TTL.Round(time.Minute))

	freed, err := migration.ForceUnlockHolder(ctx, holder.ID)
	fmt.Println(freed, err)
	freed, err = migration.ForceUnlockHolder(ctx, holder.ID)
	fmt.Println(freed, err)
	// Output:
	// true host-3, deploy 1841 5m0s
	// true <nil>
	// false <nil>
}

// ForceUnlock frees a lock whose holder is known to be dead. The holder, if it lives, is notified at
// once, or learns of it at its next renewal.
func ExampleMutex_ForceUnlock() {
	ctx := context.Background()
	nightly := newLocks().Mutex("nightly", redislock.WithLease(5*time.Second))
	holder, err := nightly.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}

	freed, err := nightly.ForceUnlock(ctx)
	fmt.Println(freed, err)
	<-holder.Done()
	fmt.Println(errors.Is(holder.Err(), redislock.ErrLost))
	// Output:
	// true <nil>
	// true
}
