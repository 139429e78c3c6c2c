package redislock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/joined"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
)

// This file is the state of locks that are made of several, and how they are freed by force.

// askAll calls f for every part at the same time and returns the results in order.
func askAll[T any](parts []*Mutex, f func(*Mutex) (T, error)) (answers []T, errs []error) {
	answers, errs = make([]T, len(parts)), make([]error, len(parts))
	var asking sync.WaitGroup
	for i, part := range parts {
		asking.Go(func() { answers[i], errs[i] = f(part) })
	}
	asking.Wait()
	return answers, errs
}

// MultiState is what Redis has under the names of a MultiMutex, each at an instant of its own.
type MultiState struct {
	Locked bool             // at least one of the names is held: TryLock would have failed
	Names  map[string]State // of each name
}

// State asks Redis for the state of all names at the same time. It blocks for one round trip, at most until
// ctx ends. The answer may be out of date when it arrives, as that of Mutex.State. Holds of one name and of
// several look alike in Redis.
//
// If the state of some names is not known, the error joins their errors, and the MultiState has the others.
func (m *MultiMutex) State(ctx context.Context) (MultiState, error) {
	if err := admit(ctx, &m.client.gate, m.name(), m.err); err != nil {
		return MultiState{}, err
	}
	defer m.client.gate.Leave()
	states, errs := askAll(m.parts, func(part *Mutex) (State, error) { return part.State(ctx) })
	s := MultiState{Names: make(map[string]State, len(m.names))}
	for i, name := range m.names {
		if errs[i] == nil {
			s.Names[name] = states[i]
			s.Locked = s.Locked || states[i].Locked
		}
	}
	return s, joined.Errors(errs...)
}

// ForceUnlock frees all names at the same time, as Mutex.ForceUnlock frees one, and reports whether any was
// held. Holders of all names, of some and of one lose them. A call of Lock that has taken some names and waits for
// others takes them again, or returns a Lock that is about to be lost. ForceUnlock blocks as Mutex.ForceUnlock
// does. The error joins those of the names that could not be freed; the others
// are free.
func (m *MultiMutex) ForceUnlock(ctx context.Context) (bool, error) {
	if err := admit(ctx, &m.client.gate, m.name(), m.err); err != nil {
		return false, err
	}
	defer m.client.gate.Leave()
	freed, errs := askAll(m.parts, func(part *Mutex) (bool, error) { return part.ForceUnlock(ctx) })
	return slices.Contains(freed, true), joined.Errors(errs...)
}

// QuorumState is a lock as the servers of a Quorum have it, each at an instant of its own.
type QuorumState struct {
	// Locked says that the lock is free on fewer than a majority of the servers that answered: TryLock would
	// have been refused. One holder may have it, or several may be in each other's way.
	Locked bool

	// Holder is the hold that a majority of the servers names. Its ID is the common part of the ids of one
	// hold. It is zero if there is no such hold, which may be because a server did not answer.
	Holder Holder

	TTL     time.Duration // until a majority is free unless holds are renewed; negative if it never will be, 0 if it is
	Servers []ServerState // of each server, in the order of NewQuorum
}

// ServerState is the state of a lock on one server of a Quorum.
type ServerState struct {
	State
	Err error // why the State is not known, or nil
}

// State asks all servers at the same time for the state of the lock. It blocks until all have answered, at
// most until ctx ends, a third of the lease is over, or 5 seconds. The answer may be out of date when it
// arrives: it is for people and dashboards, not for a decision to act.
//
// If fewer than a majority answered, the error matches ErrNoQuorum, or ctx.Err() if ctx has ended. Then only
// Servers is set.
func (m *QuorumMutex) State(ctx context.Context) (QuorumState, error) {
	states, errs, err := survey(ctx, m, "state of", (*Mutex).State)
	s := QuorumState{Servers: make([]ServerState, len(states))}
	for i, state := range states {
		s.Servers[i] = ServerState{state, errs[i]}
	}
	if err == nil {
		s.count(m.quorum.majority())
	}
	return s, err
}

// count derives the state of the whole from the answers of the servers.
func (s *QuorumState) count(majority int) {
	free, named := 0, make(map[string]int)
	var holds []time.Duration
	for _, server := range s.Servers {
		switch {
		case server.Err != nil:
			continue
		case !server.Locked:
			free++
			continue
		}
		holds = append(holds, server.TTL)
		for _, h := range server.Holders {
			id, _, _ := strings.Cut(h.ID, serverMark)
			if named[id]++; named[id] == majority {
				s.Holder = Holder{id, h.Metadata}
			}
		}
	}
	if s.Locked = free < majority; s.Locked {
		s.TTL = untilFree(holds, majority-free)
	}
}

// ForceUnlock frees the lock on all servers, whatever holds it there, and reports whether any of them had it.
// The holder's Lock ends when the messages of a majority have arrived, or its renewals no longer find a majority.
// It blocks until all servers have answered, at most until ctx ends, a third of the lease is over, or 5 seconds.
//
// If fewer than a majority answered, the error matches ErrNoQuorum, or ctx.Err() if ctx has ended. The
// servers that answered have freed the lock, but it may still be held. After a nil error, servers that did
// not answer may have the lock; they are too few to keep it.
func (m *QuorumMutex) ForceUnlock(ctx context.Context) (bool, error) {
	freed, _, err := survey(ctx, m, "force unlock", (*Mutex).ForceUnlock)
	return slices.Contains(freed, true), err
}

// survey asks all servers. It returns the answer or the error of each, and an error if fewer than a majority
// answered.
func survey[T any](
	ctx context.Context, m *QuorumMutex, operation string, f func(*Mutex, context.Context) (T, error),
) ([]T, []error, error) {
	q := m.quorum
	if err := admit(ctx, &q.gate, m.name, m.err); err != nil {
		return nil, nil, err
	}
	defer q.gate.Leave()
	bounded, cancel := q.wheel.WithTimeout(ctx, m.voteTimeout())
	defer cancel()
	answers, errs := askAll(m.parts, func(part *Mutex) (T, error) { return f(part, bounded) })
	answered := 0
	for i, err := range errs {
		switch {
		case err == nil:
			answered++
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil: // not the caller's deadline
			errs[i] = operationError(operation, m.name, errSlow)
		}
	}
	var err error
	switch {
	case answered >= q.majority():
	case ctx.Err() != nil:
		err = operationError(operation, m.name, contexts.Error(ctx))
	default:
		err = operationError(operation, m.name, noQuorum(errs))
	}
	return answers, errs, err
}
