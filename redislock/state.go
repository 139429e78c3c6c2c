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

	"github.com/cogwheel-go/cogwheel/internal/calls"
	"github.com/cogwheel-go/cogwheel/internal/conventions"
	"github.com/cogwheel-go/cogwheel/internal/gate"
	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
)

// State is the state of a lock in Redis at one instant.
type State struct {
	Locked  bool
	Holders []Holder      // sorted by ID; several only for readers
	TTL     time.Duration // time until the last hold ends unless it is renewed; negative: never, 0: not held
	Token   int64         // the highest fencing token given out or reserved for handoffs, 0 if none is known
	Waiting []Waiter      // for a FairMutex, its waiters in order; nil for other kinds, however many wait: see State
}

// Holder identifies one hold of a lock in Redis. In the State of an RWMutex, the ID of the writer ends in ":write".
type Holder struct {
	ID       string // unique for each acquisition from Redis; a handoff within a process keeps it
	Metadata string // the text of WithMetadata, "" without
}

// Waiter describes one place in the queue of a FairMutex. Its process may have died and not be skipped yet.
type Waiter struct {
	ID       string
	Metadata string // the text of WithMetadata, "" without
}

const (
	// mostWaiting is the maximum number of waiters in a State.
	mostWaiting = 1000

	// migrationPause is the pause of State before it asks again for keys whose cluster slot migrates.
	migrationPause = 64 * time.Millisecond
)

// metadataMark precedes the metadata in an id: <client>:<n>:m=<metadata, escaped>[:write]. To Redisson the id
// is opaque.
const metadataMark = ":m="

func metadataOf(id string) string {
	_, escaped, _ := strings.Cut(id, metadataMark)
	escaped, _, _ = strings.Cut(escaped, ":")
	text, err := url.QueryUnescape(escaped)
	if err != nil { // not an id of this library
		return ""
	}
	return text
}

// view is how State reads the holders of a kind of lock, and its waiters, if they have a queue in Redis.
type view struct {
	commands []string // beside those of all kinds

	// read adds its commands to the pipeline, and returns what notes their replies.
	read func(pipe redis.Pipeliner, name string) (note func(*State))
}

var (
	// hashView is for the locks whose holders are the fields of a hash.
	hashView = view{commands: []string{"hgetall"}, read: readHash}

	fairView = view{commands: []string{"hgetall", "lrange"}, read: readFair}
)

func readHash(pipe redis.Pipeliner, name string) (note func(*State)) {
	fields := pipe.HGetAll(context.Background(), name)
	return func(s *State) {
		for field := range fields.Val() {
			if field != "mode" && field != "next" {
				s.Holders = append(s.Holders, Holder{field, metadataOf(field)})
			}
		}
		slices.SortFunc(s.Holders, func(a, b Holder) int { return strings.Compare(a.ID, b.ID) })
	}
}

func readFair(pipe redis.Pipeliner, name string) (note func(*State)) {
	noteHolders := readHash(pipe, name)
	queue := pipe.LRange(context.Background(), scripts.FairLockKeys(name)[1], 0, mostWaiting-1)
	return func(s *State) {
		noteHolders(s)
		for _, id := range queue.Val() {
			s.Waiting = append(s.Waiting, Waiter{id, metadataOf(id)})
		}
	}
}

// State returns the state of the lock in Redis. It blocks for one round trip, or while the cluster slot of the
// lock migrates, at most until ctx ends. The state may be out of date when State returns: show it to people, do
// not act on it. On a server at its memory limit, State takes up to five round trips, and its parts may be of different
// instants.
//
// For a FairMutex, Waiting is the queue in Redis of the calls of Lock and LockFunc of all processes, at most the first
// 1000: the index of a Waiter plus 1 is its place in the line. WithMetadata tells which Waiter is whose. For other
// kinds Waiting is nil, which does not say that nobody waits; Client.Waits has the waits of this process.
func (m *Mutex) State(ctx context.Context) (State, error) {
	var note func(*State)
	var pttl *redis.DurationCmd
	var token *redis.StringCmd
	queue := func(pipe redis.Pipeliner) redis.Pipeliner {
		note = m.kind.view.read(pipe, m.name)
		pttl = pipe.PTTL(context.Background(), m.name)
		token = pipe.Get(context.Background(), scripts.LockFence(m.name))
		return pipe
	}
	rdb := m.client().redis.Client
	read := func() error {
		_, err := queue(rdb.TxPipeline()).Exec(context.Background())
		switch {
		case errors.Is(err, redis.Nil): // no token
			return nil
		case redis.IsExecAbortError(err): // a full Redis refuses commands in MULTI, even those that only read
			for _, cmd := range queue(rdb.Pipeline()).Cmds() {
				if err := rdb.Process(context.Background(), cmd); err != nil && !errors.Is(err, redis.Nil) {
					return err
				}
			}
			return nil
		}
		return err
	}
	_, err := m.admin(ctx, "state of", func() result {
		err := read()
		for redisconn.Migrating(err) {
			if m.client().gate.Closed() {
				return result{err: ErrClosed}
			}
			if err := wheelentry.Sleep(ctx, m.client().wheel, migrationPause); err != nil {
				return result{err: err}
			}
			err = read()
		}
		return result{err: err}
	})
	if err != nil {
		return State{}, err
	}
	s := State{}
	note(&s)
	if s.Locked = len(s.Holders) > 0; s.Locked {
		s.TTL = pttl.Val()
	}
	s.Token, _ = strconv.ParseInt(token.Val(), 10, 64)
	return s, nil
}

// ForceUnlockHolder frees the lock if the hold with the given ID has it, notifies the holder, wakes the
// waiters, and reports whether that hold had the lock. The ID is that of a Holder in State. A later acquisition
// from Redis has another ID and is not affected. A hold that was handed over within its process has the same ID
// and ends. ForceUnlockHolder blocks for two round trips, or three for the part of a Quorum's lock. Otherwise it
// is like ForceUnlock.
func (m *Mutex) ForceUnlockHolder(ctx context.Context, id string) (bool, error) {
	return m.admin(ctx, "force unlock", func() result {
		if err := m.markForced(id); err != nil {
			return result{err: err}
		}
		r, answered := m.do(ctx, func() scripts.Call { return m.kind.release(&claim{mutex: m, id: id}) })
		if !answered {
			return result{false, conventions.Cause(ctx)}
		}
		freed, _, err := readRelease(&r)
		freed = freed || err == nil && r.Ambiguous
		if freed {
			m.notify([]string{id})
		}
		return result{freed, err}
	})
}

// ForceUnlock frees the lock, whoever holds it, notifies its holders, wakes the waiters, and reports whether
// the lock was held. The Lock of a holder ends when the notification arrives; if its Client was not subscribed
// then, once it has subscribed, and at its next renewal at the latest. Until then Lock.Valid returns true,
// although another process may have the lock. So use ForceUnlock only on holders that are known to be dead, or
// with fencing: the next token is higher than the holder's.
//
// If the holder is a Quorum, ForceUnlock frees its part on this server, and that hold does not take the part again.
//
// ForceUnlock blocks for one round trip, or two on sharded channels, and two more for the part of a Quorum's lock,
// at most until ctx ends. After an error the lock may have been freed.
func (m *Mutex) ForceUnlock(ctx context.Context) (bool, error) {
	return m.admin(ctx, "force unlock", func() result {
		marked := "" // the part that may be freed
		for {
			r, answered := m.do(ctx, func() scripts.Call {
				call := m.kind.force(&m.newRequest(false).claim)
				if marked != "" {
					call.Args = append(call.Args, marked)
				}
				return call
			})
			if !answered {
				return result{false, conventions.Cause(ctx)}
			}
			freed, ids, part, err := readForced(&r, marked)
			if part == "" {
				if len(ids) > 0 {
					m.notify(ids)
				}
				return result{freed || err == nil && r.Ambiguous, err}
			}
			if err := m.markForced(part); err != nil {
				return result{false, err}
			}
			marked = part
		}
	})
}

// forcedFor is how long a server remembers that it has freed the part of a hold by force.
const forcedFor = 24 * time.Hour

// markForced makes a server refuse to grant the part of a Quorum's hold again. It must precede the release of the
// part by force. For the id of another hold it does nothing.
func (m *Mutex) markForced(id string) error {
	if !strings.Contains(id, serverMark) {
		return nil
	}
	key := (&claim{mutex: m, id: id}).forcedKey()
	return m.client().redis.Client.Set(context.Background(), key, 1, forcedFor).Err()
}

// readForced reads the reply of a force script: the ids to notify, or the part to mark first, which is not the one that
// is marked.
func readForced(r *redisconn.Reply, marked string) (freed bool, ids []string, part string, err error) {
	if err := r.Err(); err != nil {
		return false, nil, "", err
	}
	reply, _ := r.Val().([]any)
	if len(reply) == 2 && reply[0] == int64(2) {
		if part, _ = reply[1].(string); part != marked && strings.Contains(part, serverMark) {
			return false, nil, part, nil
		}
	}
	for i, v := range reply {
		id, isText := v.(string)
		n, isNumber := v.(int64)
		switch {
		case i == 0 && isNumber && (n == 0 || n == 1):
			freed = n == 1
		case i > 0 && isText && freed:
			ids = append(ids, id)
		default:
			return false, nil, "", r.Unexpected()
		}
	}
	if len(reply) == 0 {
		return false, nil, "", r.Unexpected()
	}
	return freed, ids, "", nil
}

// do sends a call for the lock.
func (m *Mutex) do(ctx context.Context, build func() scripts.Call) (r redisconn.Reply, answered bool) {
	return m.client().redis.Sender.Do(ctx, calls.Request{Key: m.name, Build: build})
}

type result struct {
	yes bool
	err error
}

// admin makes a call for the lock that is not an acquisition.
func (m *Mutex) admin(ctx context.Context, operation string, f func() result) (bool, error) {
	if err := m.enter(ctx); err != nil {
		return false, err
	}
	c := m.client()
	defer c.gate.Leave()
	r, answered := gate.Await(&c.gate, ctx.Done(), f)
	if !answered {
		return false, operationError(operation, m.name, conventions.Cause(ctx))
	}
	if r.err != nil {
		return false, operationError(operation, m.name, r.err)
	}
	return r.yes, nil
}
