package redislock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// The constructor of each kind, and of each option that changes how long a hold lasts or what others see of it.
func Example_kinds() {
	ctx := context.Background()
	locks := newLocks()
	one, two, three := newRedis(), newRedis(), newRedis()
	kinds := func() error {
		stock := locks.Mutex("stock:42")
		printer := locks.FairMutex("printer")
		prices := locks.RWMutex("prices") // prices.Reader() and prices.Writer() have the methods of a Mutex
		rooms := locks.MultiMutex([]string{"room:1", "room:2"})
		ledger := locks.Mutex("ledger", redislock.WithFencing())
		scan := locks.Mutex("scan", redislock.WithLease(time.Minute), redislock.WithoutRenewal())
		export := locks.Mutex("export", redislock.WithMaxHold(time.Hour))
		report := locks.Mutex("report", redislock.WithMinHold(10*time.Second))
		vacuum := locks.Mutex("vacuum", redislock.WithMetadata("host-3, pid 4711"))

		servers := []redis.UniversalClient{one, two, three} // clients of three independent servers
		quorum, err := redislock.NewQuorum(servers)         // once per process
		if err != nil {
			return err
		}
		defer quorum.Close(ctx)
		leader := quorum.Mutex("leader")

		for _, lock := range []interface {
			Do(ctx context.Context, f func(context.Context) error) error
		}{stock, printer, prices.Reader(), prices.Writer(), rooms, ledger, scan, export, report, vacuum, leader} {
			if err := lock.Do(ctx, func(ctx context.Context) error { return ctx.Err() }); err != nil {
				return err
			}
		}
		return nil
	}
	fmt.Println(kinds())
	// Output: <nil>
}

// What a hold of some kinds can do besides.
func Example_holds() {
	ctx := context.Background()
	locks := newLocks()
	post := func(ctx context.Context, token int64) error { fmt.Println("token:", token > 0); return ctx.Err() }
	deposit := func(context.Context) error { fmt.Println("deposit"); return nil }
	holds := func() error {
		ledger := locks.Mutex("ledger", redislock.WithFencing())
		err := ledger.Do(ctx, func(ctx context.Context) error {
			return post(ctx, ledger.FromContext(ctx).Token())
		})
		if err != nil {
			return err
		}

		account := locks.Mutex("account:7")
		task := redislock.ContextWithOwner(ctx, &redislock.Owner{}) // one for each request, for example
		err = account.Do(task, func(task context.Context) error {
			return account.Do(task, deposit) // does not wait: the Owner holds the lock
		})
		if err != nil {
			return err
		}

		prices := locks.RWMutex("prices")
		writer, err := prices.Lock(ctx)
		if err != nil {
			return err
		}
		defer writer.Unlock(ctx)                     // ErrNotHeld after Downgrade
		reader, err := prices.Downgrade(ctx, writer) // no other writer comes in between
		if err != nil {
			return err
		}
		return reader.Unlock(ctx)
	}
	if err := holds(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// token: true
	// deposit
}
