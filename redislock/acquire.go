package redislock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// A waiter looks at the lock this often even if nothing told it to.
	minPoll = time.Second
	maxPoll = 5 * time.Second

	// slowTries is how often a lock is asked for whose replies take longer than its lease.
	slowTries = 3
)

// wait is the waiting part of Lock: look, sleep until there is reason to look again.
func (m *Mutex) wait(ctx context.Context, req *request, locked *LockedError) (*Lock, error) {
	c := m.client
	wake := make(chan struct{}, 1)
	look := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	// The first look came before the subscription, so a release between the two was missed: the hub wakes once the
	// subscription is confirmed.
	sub := c.hub.Subscribe(m.kind.channel(req), look)
	defer sub.Close()
	var poll wheel.Timer
	defer func() { poll.Stop() }()
	for {
		pause := untilNextLook(locked.TTL, rand.Float64())
		if !poll.Reset(pause) {
			var err error
			if poll, err = c.wheel.AfterFunc(pause, look); err != nil {
				return nil, operationError("lock", m.name, err)
			}
		}
		select {
		case <-wake:
		case <-ctx.Done():
			if m.kind.leave != nil {
				c.abandon(req, false)
			}
			return nil, operationError("lock", m.name, errors.Join(ended(ctx), locked))
		case <-c.gate.closing:
			return nil, ErrClosed
		}
		if m.kind.leave == nil {
			req = m.request(true)
		}
		l, err := m.try(ctx, req)
		if errors.As(err, &locked) {
			continue
		}
		if err != nil && ctx.Err() != nil {
			err = errors.Join(err, locked)
		}
		return l, err
	}
}

// untilNextLook is the time until the present hold may have run out, at most a poll interval. u is uniform in [0,1).
func untilNextLook(ttl time.Duration, u float64) time.Duration {
	poll := minPoll + time.Duration(u*float64(maxPoll-minPoll))
	if ttl < 0 { // without expiry
		return poll
	}
	return min(ttl+time.Millisecond, poll)
}

// try asks for the lock once, and again if the reply took so long that the lease was over.
func (m *Mutex) try(ctx context.Context, req *request) (*Lock, error) {
	for range slowTries {
		if ctx.Err() != nil {
			return nil, operationError("lock", m.name, ended(ctx))
		}
		l, err := m.ask(ctx, req)
		if !errors.Is(err, renewal.ErrExpired) {
			return l, err
		}
		req = m.request(req.waits) // the former is given back
	}
	return nil, fmt.Errorf("redislock: lock %q: replies took longer than the lease of %v, %d times", m.name, m.config.lease, slowTries)
}

// request names a new acquisition.
func (m *Mutex) request(waits bool) *request {
	return &request{
		kind: m.kind, name: m.name, id: m.client.nextID() + m.kind.mark,
		ttl: m.config.lease, publish: publish, waits: waits,
	}
}

// ask sends a request for the lock once, and sees to it that a lock which nobody gets is released.
func (m *Mutex) ask(ctx context.Context, req *request) (*Lock, error) {
	c := m.client
	l := &Lock{request: req, client: c}
	r, answered := c.await(ctx.Done(),
		func() reply {
			return c.run(req.kind.acquire(req))
		},
		func(r reply) {
			if taken, _, err := acquired(r); taken || err != nil || r.doubt {
				c.abandon(req, r.doubt)
			}
		})
	if !answered {
		return nil, operationError("lock", m.name, ended(ctx))
	}
	taken, pttl, err := acquired(r)
	switch {
	case err != nil:
		if r.doubt {
			c.abandon(req, true)
		}
		return nil, operationError("lock", m.name, err)
	case !taken:
		if r.doubt && req.kind.leave == nil { // the next attempt would find what a late copy of this one took
			c.abandon(req, true)
		}
		return nil, &LockedError{Name: m.name, TTL: pttl}
	}
	l.doubt = r.doubt
	if err := m.hold(l, r.sentAt); err != nil {
		c.abandon(req, r.doubt)
		return nil, err
	}
	return l, nil
}

// hold starts to look after a lock that Redis has granted.
func (m *Mutex) hold(l *Lock, sentAt time.Time) (err error) {
	c := m.client
	spec := renewal.Spec{Key: l.name, ID: l.id, TTL: l.ttl, SentAt: sentAt, Lost: ErrLost, OnLost: l.lost}
	if m.config.renew {
		l.lease, err = c.destination(m.kind).Add(spec)
	} else {
		l.lease, err = c.renewer.Watch(spec)
	}
	if err != nil {
		return operationError("lock", m.name, err)
	}
	c.keep(l)
	if c.gate.isClosed() && l.lease.Close(ErrClosed) { // Close may have looked before the lock was entered
		c.drop(l)
		return ErrClosed
	}
	return nil
}

// acquired reads the reply of the acquire script.
func acquired(r reply) (taken bool, pttl time.Duration, err error) {
	v, err := r.Int64Slice()
	if err != nil {
		return false, 0, err
	}
	if len(v) != 2 {
		return false, 0, fmt.Errorf("redislock: unexpected reply %v", v)
	}
	return v[0] == 1, time.Duration(v[1]) * time.Millisecond, nil
}
