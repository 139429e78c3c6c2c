package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// takeOver starts a process that holds a lock for several leases, and two processes that wait for it. Then it
// kills the holder.
func takeOver(ctx context.Context, w *wheel.Wheel, out *console, addr string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("the workers did not finish in time"))
	defer cancel()
	c, err := newCrew(ctx, addr, "tour-"+rand.Text())
	if err != nil {
		return err
	}
	defer c.dismiss()

	holder, err := c.hire(time.Hour)
	if err != nil {
		return err
	}
	if err := holdForLeases(ctx, out, c, 2); err != nil {
		return err
	}
	if err := w.Sleep(ctx, lease/5); err != nil { // the next renewal is due after a third
		return err
	}

	killed := time.Now()
	if err := holder.Process.Kill(); err != nil {
		return err
	}
	out.say("worker 1 is killed (SIGKILL): it neither unlocks nor renews the lock")
	return inherit(ctx, w, out, c, killed)
}

// holdForLeases returns just after a renewal, when worker 1 has held the lock for the given number of
// leases and the other workers wait.
func holdForLeases(ctx context.Context, out *console, c *crew, leases float64) error {
	var began time.Time
	for waiting, renewals, held := 0, 0, 0.0; held < leases || waiting < 2; {
		e, err := c.next(ctx)
		if err != nil {
			return err
		}
		switch {
		case e.what == waits && e.worker > 1:
			waiting++
			out.say("worker %d (process %d) waits", e.worker, c.process(e.worker))
		case e.what == holds && e.worker == 1:
			began = e.at
			out.say("worker 1 (process %d) holds the lock; its lease is %v", c.process(1), lease)
			for range 2 {
				if _, err := c.hire(lease / 4); err != nil {
					return err
				}
			}
		case e.what == renewed:
			renewals++
			held = float64(e.at.Sub(began)) / float64(lease)
			out.say("worker 1: renewal %d, held for %.1f leases", renewals, held)
		case e.what != waits:
			return fmt.Errorf("worker %d %s, while worker 1 holds the lock", e.worker, e.what)
		}
	}
	return nil
}

// inherit follows the lock from the killed worker to the second worker and then to the third.
func inherit(ctx context.Context, w *wheel.Wheel, out *console, c *crew, killed time.Time) error {
	stop := out.progress(w, func() string { return "waiting for the lease of the dead holder to end" })
	heir, err := c.expect(ctx, holds)
	stop()
	if err != nil {
		return err
	}
	took := heir.at.Sub(killed)
	out.say("worker %d takes over %v after the kill", heir.worker, took.Round(time.Millisecond))
	if took > lease+redislock.DefaultPoll { // on a machine that stands still, the waiter may be late
		return fmt.Errorf("the lock was taken over after %v, more than one lease", took)
	}

	released, err := c.expect(ctx, releases)
	if err != nil {
		return err
	}
	out.say("worker %d releases the lock", released.worker)
	last, err := c.expect(ctx, holds)
	if err != nil {
		return err
	}
	out.say("worker %d holds it %v later: a message woke it",
		last.worker, last.at.Sub(released.at).Round(time.Microsecond))
	_, err = c.expect(ctx, releases)
	return err
}
