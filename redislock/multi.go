package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// multi is the kind of a lock made of several. It is never asked for: its parts are.
var multi = &kind{label: "multi"}

// MultiMutex is the lock of several names at once: it is held when all of them are. It holds no state of its own and is
// safe for concurrent use.
type MultiMutex struct {
	client *Client
	names  []string // in the order in which they are taken, so that no two callers wait for each other
	parts  []*Mutex
	err    error
}

// MultiMutex returns the lock of all these names, at least one, none twice. It does not talk to Redis. Each of them is the lock
// that Mutex returns for it, so holders of the whole and of single names exclude each other, as they do with Redisson's
// getMultiLock. In a cluster the names may be on different nodes. A bad name is reported by Lock, TryLock and Do as an
// *InvalidError.
func (c *Client) MultiMutex(names ...string) *MultiMutex {
	m := &MultiMutex{client: c, names: slices.Sorted(slices.Values(names))}
	return m.With()
}

// With returns a lock of the same names with other options, those of Mutex, which apply to each part. WithFencing is refused: each
// name has tokens of its own.
func (m *MultiMutex) With(opts ...LockOption) *MultiMutex {
	with := &MultiMutex{client: m.client, names: m.names}
	if len(m.names) == 0 {
		with.err = &InvalidError{Field: "names", Value: "none", Reason: "at least one is needed"}
	}
	for i, name := range m.names {
		part := m.client.Mutex(name, opts...)
		switch {
		case with.err != nil:
		case part.err != nil:
			with.err = part.err
		case i > 0 && name == m.names[i-1]:
			with.err = &InvalidError{Field: "names", Value: fmt.Sprintf("%q", name), Reason: "given more than once"}
		case part.config.fenced:
			with.err = &InvalidError{Field: "option", Value: "WithFencing", Reason: "each name has tokens of its own"}
		}
		with.parts = append(with.parts, part)
	}
	return with
}

// Names returns the names, sorted.
func (m *MultiMutex) Names() []string { return slices.Clone(m.names) }

// Lock takes all locks, one after the other in the order of their names, waiting for each; those that it has are renewed meanwhile. If
// one cannot be had, Lock releases the others and returns the error that Mutex.Lock returned for it.
//
// The Lock's Name is the names, joined by commas. It is lost as soon as one of its parts is: Done is closed, Err tells which, and
// the other parts are released shortly after, or by Unlock. Its Deadline is that of the part that ends first.
func (m *MultiMutex) Lock(ctx context.Context) (*Lock, error) { return m.take(ctx, (*Mutex).Lock) }

// TryLock takes all locks if they are free, and none otherwise. The error is that of the first, in order of names, that could not be had.
// It blocks for one round trip for each.
func (m *MultiMutex) TryLock(ctx context.Context) (*Lock, error) {
	return m.take(ctx, (*Mutex).TryLock)
}

// Do runs f while holding the lock, as Mutex.Do does.
func (m *MultiMutex) Do(ctx context.Context, f func(context.Context) error) error {
	return do(ctx, m.client.logger, m.Lock, f)
}

func (m *MultiMutex) take(ctx context.Context, one func(*Mutex, context.Context) (*Lock, error)) (*Lock, error) {
	if m.err != nil {
		return nil, m.err
	}
	for range slowTries {
		parts := make([]*Lock, 0, len(m.parts))
		for _, part := range m.parts {
			l, err := one(part, ctx)
			if err != nil {
				release(ctx, parts)
				return nil, err
			}
			parts = append(parts, l)
		}
		l := m.client.join(strings.Join(m.names, ","), newJoint(len(parts), parts))
		if l.Valid() {
			return l, nil
		}
		release(ctx, parts) // what was not renewed is over before the last one could be had
	}
	return nil, operationError("lock", strings.Join(m.names, ","), errors.New("parts were lost before all could be had"))
}

func release(ctx context.Context, parts []*Lock) {
	if len(parts) > 0 {
		_ = newJoint(len(parts), parts).unlock(ctx) // what fails is retried in the background
	}
}

// join makes a Lock of a joint.
func (c *Client) join(name string, j *joint) *Lock {
	return &Lock{request: &request{kind: multi, name: name}, client: c, lease: j}
}
