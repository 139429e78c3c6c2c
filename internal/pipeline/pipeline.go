// Package pipeline decides which calls to a node travel together.
//
// A call that finds few enough pipelines in flight is sent at once. Calls that come while enough are in
// flight share the next pipeline. So the fewer calls there are, the sooner each is sent, and the more there
// are, the less each costs.
package pipeline

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
)

const (
	// MaxInFlight is how many pipelines to a node are in flight at most. With one, pipelines would be the
	// largest; with a second, calls that come meanwhile wait for half a round trip on average.
	MaxInFlight = 2

	// stalledAfter is how long pipelines in flight hold up others. A connection may have gone dead, and
	// others are well.
	stalledAfter = 20 * time.Millisecond
)

// Line is the queue of calls to one node. The zero value is ready for use. It is safe for concurrent use.
type Line[J comparable] struct {
	Width int // how many pipelines are in flight at most; 0 stands for MaxInFlight

	mu       sync.Mutex
	inFlight int
	sentAt   time.Time // when the last pipeline was sent
	queue    []J
}

// Begin reports whether the caller is to send its call now, and then to call Next until it returns nil.
// Otherwise the call was queued, as job j, for the next pipeline.
func (l *Line[J]) Begin(j J) (now bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	width, at := cmp.Or(l.Width, MaxInFlight), time.Now()
	if l.inFlight >= width && at.Sub(l.sentAt) < stalledAfter {
		l.queue = append(l.queue, j)
		return false
	}
	l.inFlight++
	l.sentAt = at
	return true
}

// Next returns the jobs of the next pipeline, to be sent by the caller when its last one was answered. If
// there are none, it returns nil, and one pipeline less is in flight.
func (l *Line[J]) Next() []J {
	l.mu.Lock()
	defer l.mu.Unlock()
	jobs := l.queue
	if l.queue = nil; len(jobs) == 0 {
		l.inFlight--
		return nil
	}
	l.sentAt = time.Now()
	return jobs
}

// Queue adds jobs to the next pipeline. A pipeline must be in flight.
func (l *Line[J]) Queue(jobs ...J) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, jobs...)
}

// Withdraw removes a job from the next pipeline, and reports whether it was still there.
func (l *Line[J]) Withdraw(j J) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.queue, j)
	if i < 0 {
		return false
	}
	l.queue = slices.Delete(l.queue, i, i+1)
	return true
}

// Lines has a line of type S for each node, and for each Group of calls that share pipelines. The zero value
// is ready for use.
type Lines[G comparable, S any] struct {
	mu  sync.Mutex
	all map[route[G]]*S
}

type route[G comparable] struct {
	node  string
	group G
}

// Of returns the line of the node of a key, made by newLine if there was none. It is nil if that node is not
// known, or not yet: then nothing is shared, because in a pipeline for several nodes the slowest would hold
// up the others. Of does not block.
func (l *Lines[G, S]) Of(rdb redis.UniversalClient, key string, group G, newLine func() *S) *S {
	addr, known := redisconn.NodeAddr(rdb, key)
	if !known {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := route[G]{addr, group}
	line := l.all[r]
	if line == nil {
		if l.all == nil {
			l.all = map[route[G]]*S{}
		}
		line = newLine()
		l.all[r] = line
	}
	return line
}

// Len returns the number of lines.
func (l *Lines[G, S]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}
