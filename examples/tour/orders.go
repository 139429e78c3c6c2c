package main

import (
	"context"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/wheel"
)

const payWithin = 1500 * time.Millisecond

// closeUnpaidOrders places five orders. A timer closes each order unless a payment stops the timer first.
func closeUnpaidOrders(ctx context.Context, w *wheel.Wheel, out *console) error {
	payments := map[int]time.Duration{
		2: 300 * time.Millisecond,
		4: 500 * time.Millisecond,
		5: 2500 * time.Millisecond, // too late
	}
	var open sync.WaitGroup // counts orders and payments that are still to come
	for order := 1; order <= 5; order++ {
		open.Add(1)
		closing, err := w.AfterFunc(payWithin, func() {
			defer open.Done()
			out.say("order %d: unpaid, closed by its timer", order)
		})
		if err != nil {
			return err
		}
		out.say("order %d: placed, to be paid within %v", order, payWithin)

		pays, ok := payments[order]
		if !ok {
			continue
		}
		open.Add(1)
		if _, err := w.AfterFunc(pays, func() {
			defer open.Done()
			if closing.Stop() { // the timer was pending and will not fire
				open.Done()
				out.say("order %d: paid in time", order)
			} else {
				out.say("order %d: the payment comes too late and is returned", order)
			}
		}); err != nil {
			return err
		}
	}
	return await(ctx, &open)
}

// await waits until all are done or ctx ends.
func await(ctx context.Context, all *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
