package redislock

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/contexts"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// State is the state of a lock in Redis at one instant.
type State struct {
	Locked  bool
	Holders []Holder      // in the order of their ids; several for readers
	TTL     time.Duration // until the last hold ends unless it is renewed; negative: never, 0: not held
	Token   int64         // the highest fencing token given out or reserved for hand-overs, 0 if none is known
	Waiting []Waiter      // of a FairMutex: its queue in Redis, at most the first 1000; the other kinds have none
}

// Holder is one hold of a lock in Redis.
type Holder struct {
	ID       string // unique for each acquisition from Redis; a hand-over within a process keeps it
	Metadata string // the text of WithMetadata, "" without
}

// Waiter is one place in the queue of a FairMutex. It may belong to a process that has died and was not yet
// skipped.
type Waiter struct {
	ID       string
	Metadata string // the text of WithMetadata, "" without
}

// mostWaiting bounds the waiters of a State.
const mostWaiting = 1000

// metadataMark precedes the metadata in an id: <client>:<n>:m=<metadata, escaped>[:write]. To Redisson the id
// is opaque.
const metadataMark = ":m="

func metadataOf(id string) string {
	_, escaped, _ := strings.Cut(id, metadataMark)
	escaped, _, _ = strings.Cut(escaped, ":")
	text, err := url.QueryUnescape(escaped)
	if err != nil { // not ours
		return ""
	}
	return text
}

// State asks Redis for the state of the lock. It blocks for one round trip, at most until ctx ends. The
// answer may be out of date when it arrives: it is for people and dashboards, not for a decision to act.
func (m *Mutex) State(ctx context.Context) (State, error) {
	var fields *redis.MapStringStringCmd
	var pttl *redis.DurationCmd
	var token *redis.StringCmd
	var queue *redis.StringSliceCmd
	_, err := m.admin(ctx, "state of", func() result {
		pipe := m.client.rdb.TxPipeline()
		fields = pipe.HGetAll(context.Background(), m.name)
		pttl = pipe.PTTL(context.Background(), m.name)
		token = pipe.Get(context.Background(), scripts.LockFence(m.name))
		if m.kind == fair {
			queue = pipe.LRange(context.Background(), scripts.FairLockKeys(m.name)[1], 0, mostWaiting-1)
		}
		_, err := pipe.Exec(context.Background())
		if errors.Is(err, redis.Nil) { // no token
			err = nil
		}
		return result{err: err}
	})
	if err != nil {
		return State{}, err
	}
	s := State{}
	for field := range fields.Val() {
		if field != "mode" {
			s.Holders = append(s.Holders, Holder{field, metadataOf(field)})
		}
	}
	slices.SortFunc(s.Holders, func(a, b Holder) int { return strings.Compare(a.ID, b.ID) })
	if s.Locked = len(fields.Val()) > 0; s.Locked {
		s.TTL = pttl.Val()
	}
	s.Token, _ = strconv.ParseInt(token.Val(), 10, 64)
	if queue != nil {
		for _, id := range queue.Val() {
			s.Waiting = append(s.Waiting, Waiter{id, metadataOf(id)})
		}
	}
	return s, nil
}

// ForceUnlockHolder ends the hold with the ID that State has shown, wakes the waiters, and reports whether
// that hold had the lock. A hold taken from Redis since is not touched; one that was handed over within the
// process has the same ID and ends. It blocks for two round trips. Otherwise it is like ForceUnlock.
func (m *Mutex) ForceUnlockHolder(ctx context.Context, id string) (bool, error) {
	return m.admin(ctx, "force unlock", func() result {
		m.client.channels.Decide()
		r := m.client.sender.Run(m.kind.release(&request{mutex: m, id: id}), ctx.Done())
		freed, err := r.Flag()
		freed = freed || err == nil && r.Ambiguous
		if freed {
			m.notify([]string{id})
		}
		return result{freed, err}
	})
}

// ForceUnlock frees the lock, whatever hold has it, notifies its holders, wakes the waiters, and reports
// whether it was held. A holder's Lock ends when the message arrives; if that is lost, at the next renewal.
// Until then Lock.Valid stays true, although another may have the lock. So use ForceUnlock on holders that
// are known to be dead, or with fencing: the next token is higher than the holder's. ForceUnlock blocks for
// one round trip, two on sharded channels, at most until ctx ends. After an error the lock may have been
// freed.
func (m *Mutex) ForceUnlock(ctx context.Context) (bool, error) {
	return m.admin(ctx, "force unlock", func() result {
		m.client.channels.Decide()
		r := m.client.sender.Run(m.kind.force(m.newRequest(false)), ctx.Done())
		freed, ids, err := readForced(&r)
		if len(ids) > 0 {
			m.notify(ids)
		}
		return result{freed || err == nil && r.Ambiguous, err}
	})
}

// readForced reads the reply of a force script.
func readForced(r *redisconn.Reply) (freed bool, ids []string, err error) {
	if err := r.Err(); err != nil {
		return false, nil, err
	}
	reply, _ := r.Val().([]any)
	for i, v := range reply {
		id, isText := v.(string)
		n, isNumber := v.(int64)
		switch {
		case i == 0 && isNumber && (n == 0 || n == 1):
			freed = n == 1
		case i > 0 && isText && freed:
			ids = append(ids, id)
		default:
			return false, nil, r.Unexpected()
		}
	}
	if len(reply) == 0 {
		return false, nil, r.Unexpected()
	}
	return freed, ids, nil
}

type result struct {
	yes bool
	err error
}

// admin makes a call about the lock that is no acquisition.
func (m *Mutex) admin(ctx context.Context, operation string, f func() result) (bool, error) {
	if err := m.begin(ctx); err != nil {
		return false, err
	}
	c := m.client
	defer c.gate.Leave()
	r, answered := gate.Await(&c.gate, ctx.Done(), f, func(result) {})
	if !answered {
		return false, operationError(operation, m.name, contexts.Error(ctx))
	}
	if r.err != nil {
		return false, operationError(operation, m.name, r.err)
	}
	return r.yes, nil
}
