// Package client has the common parts of the Clients of redislock, semaphore, delay and ratelimit: their options, the
// parts that talk to Redis, and the order in which Close ends these parts.
package client

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/pubsub"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/renewal"
)

// Redis has the parts with which a Client talks to Redis.
type Redis struct {
	Client redis.UniversalClient // the argument of New; sends the calls of callers
	Base   redis.UniversalClient // the client of a known type that Client is or embeds; else Client
	Known  bool                  // Base is of a known type
	Sender *calls.Sender         // does not repeat calls and has no timeout, unless the package sets them
}

// NewRedis returns the Redis of a Client with the gate g, and sets the Workers of g. It refuses a client without a
// ReadTimeout. It starts nothing.
func NewRedis(o *Options, rdb redis.UniversalClient, g *gate.Gate) (Redis, error) {
	if err := o.Package.Client(rdb); err != nil {
		return Redis{}, err
	}
	base := redisconn.Base(rdb)
	if redisconn.Endless(base) {
		return Redis{}, o.Package.Error("client", "without a ReadTimeout", o.Endless)
	}
	g.Workers = gate.NewWorkers(o.Wheel)
	r := Redis{Client: rdb, Base: cmp.Or(base, rdb), Known: base != nil}
	r.Sender = calls.New(calls.Config{
		Client: rdb, Base: r.Base, Wheel: o.Wheel, Workers: g.Workers, Gate: g,
		NoSharing: o.NoSharing,
	})
	return r, nil
}

// Leases is the Redis of a Client that has holds with leases, and callers that wait for holds.
type Leases struct {
	Redis
	Channels  *pubsub.Channels     // wake the waiters
	Renewer   *renewal.Renewer     // renews the holds
	Dedicated *redisconn.Dedicated // connections for renewals and other calls in the background

	pkg  conventions.Package
	gate *gate.Gate
}

// NewLeases is NewRedis with up to conns dedicated connections for each server, and with hooks for renewals. The Sender
// repeats calls as often as the options of rdb allow.
func NewLeases(
	o *Options, rdb redis.UniversalClient, g *gate.Gate, conns int, hooks renewal.Hooks,
) (*Leases, error) {
	r, err := NewRedis(o, rdb, g)
	if err != nil {
		return nil, err
	}
	l := &Leases{Redis: r, Channels: pubsub.NewChannels(r.Base, o.Wheel, o.Channels), pkg: o.Package, gate: g}
	l.Sender.Retries, l.Sender.Prepare = redisconn.Retries(r.Base), l.Channels.Decide
	if l.Renewer, err = renewal.New(o.Wheel, renewal.WithLogger(o.Logger), renewal.WithHooks(hooks)); err != nil {
		return nil, err
	}
	l.Dedicated = redisconn.NewDedicated(r.Base, o.Wheel, conns)
	return l, nil
}

// CheckLease refuses a lease out of range. The lower end depends on the wheel.
func (l *Leases) CheckLease(field string, lease time.Duration) error {
	if least := l.Renewer.MinTTL(); lease < least || lease > renewal.MaxTTL {
		return l.pkg.Error(field, lease, fmt.Sprintf("must be %v (ten ticks of the wheel) to 8760h", least))
	}
	return nil
}

// Close ends the parts of a Client whose gate is closed and whose holds have been released: first the renewals, then
// the subscriptions, then the dedicated connections, and last the idle workers. before has the errors of the earlier
// steps of Client.Close. Close returns them and its own as the error of Client.Close.
func (l *Leases) Close(ctx context.Context, before ...error) error {
	err := conventions.Join(append(before, l.Renewer.Close(ctx), l.Channels.Close(ctx), l.Dedicated.Close(ctx))...)
	l.gate.Workers.Close()
	if err != nil {
		return fmt.Errorf("%s: close: %w", l.pkg, err)
	}
	return nil
}
