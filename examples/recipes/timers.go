package recipes

import (
	"context"
	"log"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// OrderTimers closes orders that are not paid in time, in one process and without Redis. A timer costs no goroutine, so
// there may be a million. The database has the open orders and their times, and decides whether an order is paid or
// closed.
//
// After a crash the next process calls Add for each open order of the database. Those whose time has passed close at
// once, sixteen at a time. If another process has to close orders meanwhile, use TakeOrder.
//
// At SIGTERM take no more orders, and call Stop. The orders that are left stay open until the next process adds them.
type OrderTimers struct {
	timers *wheel.Keyed[string, struct{}]
}

// NewOrderTimers returns OrderTimers without orders. closeOrder closes an order if it is open, for example by
// UPDATE orders SET state = 'closed' WHERE id = $1 AND state = 'open'. After an error it is called again in ten seconds.
func NewOrderTimers(closeOrder func(id string) error) (*OrderTimers, error) {
	o := new(OrderTimers)
	var err error
	o.timers, err = wheel.NewKeyed(func(id string, _ struct{}) {
		if failed := closeOrder(id); failed != nil {
			log.Printf("order %s is not closed yet: %v", id, failed)
			_ = o.Add(id, time.Now().Add(10*time.Second)) // refused after Stop: the next process adds the order
		}
	}, wheel.WithExecutor(wheel.Pool(16)))
	return o, err
}

// Add lets an order of the database close at a time, which replaces an earlier one. It returns an error after Stop.
func (o *OrderTimers) Add(id string, at time.Time) error {
	_, _, err := o.timers.Set(id, struct{}{}, time.Until(at))
	return err
}

// Paid removes the timer of an order that is paid in the database. If it comes too late, closeOrder finds the order paid.
func (o *OrderTimers) Paid(id string) { o.timers.Remove(id) }

// Stop closes no more orders, and waits for those that are being closed until ctx ends.
func (o *OrderTimers) Stop(ctx context.Context) error {
	_, err := o.timers.Stop(ctx)
	return err
}
