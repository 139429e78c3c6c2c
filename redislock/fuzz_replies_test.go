package redislock_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// replyCall is a call of the public API whose reply is arbitrary. It reports whether it granted anything, in
// the widest sense: a lock, a release, a longer lease.
type replyCall struct {
	name  string
	first string // the reply to what has to precede the call
	call  func(c *redislock.Client, next func()) (granted bool, err error)
	// good reports whether the script may return the reply, and grants says whether it does by it.
	good func(r integers) (ok, grants bool)
}

// integers is a reply of integers.
type integers struct {
	list bool
	n    []int64
	raw  []any // also if they are none
}

func flagReply(r integers) (ok, grants bool) {
	ok = !r.list && len(r.n) == 1 && (r.n[0] == 0 || r.n[0] == 1)
	return ok, ok && r.n[0] == 1
}

// forcedReply: what was freed has the ids of its holds, which are texts.
func forcedReply(r integers) (ok, grants bool) {
	if !r.list || len(r.raw) == 0 {
		return false, false
	}
	freed, isNumber := r.raw[0].(int64)
	ok = isNumber && (freed == 1 || freed == 0 && len(r.raw) == 1)
	for _, id := range r.raw[1:] {
		_, isText := id.(string)
		ok = ok && isText
	}
	return ok, ok && freed == 1
}

func oneFlag(r integers) (ok, grants bool) {
	ok = r.list && len(r.n) == 1 && (r.n[0] == 0 || r.n[0] == 1)
	return ok, ok && r.n[0] == 1
}

func unfenced(r integers) (ok, grants bool) {
	ok = r.list && len(r.n) == 2 && (r.n[0] == 0 || r.n[0] == 1)
	return ok, ok && r.n[0] == 1
}

// fenced: what is granted has a token, and few tokens after it may be reserved.
func fenced(r integers) (ok, grants bool) {
	switch {
	case r.list && len(r.n) == 2:
		return r.n[0] == 0, false
	case r.list && len(r.n) == 4:
		ok = r.n[0] == 1 && r.n[2] > 0 && r.n[3] >= 0 && r.n[3] <= 10000 && r.n[2]+r.n[3] > 0
		return ok, ok
	}
	return false, false
}

func tryLock(m func(c *redislock.Client) *redislock.Mutex) func(*redislock.Client, func()) (bool, error) {
	return func(c *redislock.Client, _ func()) (bool, error) {
		l, err := m(c).TryLock(context.Background())
		if l != nil && m(c).Name() == "fenced" && l.Token() <= 0 {
			return true, errors.New("a fenced lock without a token")
		}
		return l != nil, err
	}
}

// held makes a call about a lock that is held.
func held(f func(l *redislock.Lock) (bool, error)) func(*redislock.Client, func()) (bool, error) {
	return func(c *redislock.Client, next func()) (bool, error) {
		l, err := c.Mutex("m").TryLock(context.Background())
		if err != nil {
			return false, err
		}
		next()
		return f(l)
	}
}

const took = "( 1 '30000 )"

var replyCalls = []replyCall{
	{"Mutex.TryLock", "", tryLock(func(c *redislock.Client) *redislock.Mutex { return c.Mutex("m") }), unfenced},
	{"Mutex.TryLock, fenced", "", tryLock(func(c *redislock.Client) *redislock.Mutex {
		return c.Mutex("fenced", redislock.WithFencing())
	}), fenced},
	{"FairMutex.TryLock", "", tryLock(func(c *redislock.Client) *redislock.Mutex { return c.FairMutex("m") }), unfenced},
	{"RWMutex.TryRLock", "", tryLock(func(c *redislock.Client) *redislock.Mutex {
		return c.RWMutex("m", redislock.WithFencing()).Reader()
	}), unfenced},
	{"RWMutex.TryLock", "", tryLock(func(c *redislock.Client) *redislock.Mutex { return c.RWMutex("m").Writer() }), unfenced},
	{"Lock.Unlock", took, held(func(l *redislock.Lock) (bool, error) {
		err := l.Unlock(context.Background())
		return err == nil, err
	}), flagReply},
	{"Lock.Extend", took, held(func(l *redislock.Lock) (bool, error) {
		before := l.Deadline()
		err := l.Extend(context.Background(), time.Hour)
		return l.Deadline().After(before), err
	}), oneFlag},
	{"a renewal", took, held(func(l *redislock.Lock) (bool, error) {
		before := l.Deadline()
		time.Sleep(15 * time.Second)
		return l.Deadline().After(before) && l.Err() == nil, nil
	}), nil},
	{"RWMutex.Downgrade", took, func(c *redislock.Client, next func()) (bool, error) {
		rw := c.RWMutex("m")
		l, err := rw.TryLock(context.Background())
		if err != nil {
			return false, err
		}
		next()
		r, err := rw.Downgrade(context.Background(), l)
		return r != nil, err
	}, unfenced},
	{"Mutex.ForceUnlock", "", func(c *redislock.Client, _ func()) (bool, error) {
		return c.Mutex("m").ForceUnlock(context.Background())
	}, forcedReply},
	{"FairMutex.ForceUnlockHolder", "", func(c *redislock.Client, _ func()) (bool, error) {
		return c.FairMutex("m").ForceUnlockHolder(context.Background(), "id")
	}, flagReply},
	{"FairMutex.State", "", func(c *redislock.Client, _ func()) (bool, error) {
		s, err := c.FairMutex("m").State(context.Background())
		return s.Locked, err
	}, nil},
}

// integersOf returns a reply of integers; go-redis takes texts of integers as such.
func integersOf(r redistest.Reply) (out integers) {
	all, isList := r.([]any)
	if !isList {
		all = []any{r}
	}
	out.list, out.raw = isList, all
	for _, x := range all {
		switch x := x.(type) {
		case int64:
			out.n = append(out.n, x)
		case string:
			n, err := strconv.ParseInt(x, 10, 64)
			if err != nil {
				return integers{list: isList, raw: all}
			}
			out.n = append(out.n, n)
		default:
			return integers{list: isList, raw: all}
		}
	}
	return out
}

// checkReply makes a call whose reply is the given one. A reply that no script returns is an error that grants
// nothing; one that a script returns means what the script says.
func checkReply(t *testing.T, which replyCall, text string) error {
	reply := redistest.ParseReply(text)
	var granted bool
	var err error
	synctest.Test(t, func(t *testing.T) {
		server := &redistest.Replying{}
		server.Set(redistest.ParseReply(which.first))
		if which.first == "" {
			server.Set(reply)
		}
		rdb := server.Client(t)
		w, werr := wheel.New()
		require.NoError(t, werr)
		c, cerr := redislock.New(rdb, redislock.WithWheel(w), redislock.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, cerr)
		granted, err = which.call(c, func() { server.Set(reply) })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx) // what is under way is given up
		time.Sleep(time.Hour)
		_ = rdb.Close()
		_, werr = w.Stop(context.Background())
		require.NoError(t, werr)
	})
	if which.name == "a renewal" {
		if _, grants := oneFlag(integersOf(reply)); granted != grants {
			return errors.New("does not mean what the script says")
		}
	}
	if which.good == nil {
		return nil
	}
	ok, grants := which.good(integersOf(reply))
	switch {
	case !ok && granted:
		return errors.New("granted by a reply that the script does not return")
	case !ok && err == nil:
		return errors.New("no error for a reply that the script does not return")
	case ok && granted != grants:
		return errors.New("does not mean what the script says")
	case granted && err != nil:
		return err
	}
	return nil
}

// FuzzReplies answers calls with arbitrary replies.
func FuzzReplies(f *testing.F) {
	for at := range replyCalls {
		for _, reply := range []string{
			"nil", "( )", "( nil )", "1", "0", "7", "-1", "( 1 )", "( 0 )", "( 1 1 )", "( 7 )", "( 1 30000 )", "( 0 -1 )", "( 0 30000 )",
			"( 1 30000 5 )", "( 1 30000 5 0 )", "( 1 30000 5 0 0 )", "( 1 30000 0 0 )", "( 1 30000 -5 3 )", "( 1 30000 5 -3 )",
			"( 0 9223372036854775807 )", "( 0 -9223372036854775808 )", "( 1 1 9223372036854775807 9000 )", "( 1 1 5 4294967297 )", "( 2 30000 )",
			"!WRONGTYPE_Operation", "!WRONGKIND_of|lock", "!OOM_no|memory", "!", "~inf", "( ~1.0 ~2.5 )", "true", "inf", "( !NOSCRIPT 1 )", "( 1 ( 1 ) )",
			"( 1 'a:1 'b:2 )", "( 1 'a:1 2 )", "( 0 'a:1 )", "( '1 )", "( 1 nil )",
		} {
			f.Add(uint8(at), reply)
		}
	}
	f.Fuzz(func(t *testing.T, call uint8, reply string) {
		if len(reply) > 1000 {
			t.Skip("long")
		}
		which := replyCalls[int(call)%len(replyCalls)]
		if err := checkReply(t, which, reply); err != nil {
			t.Fatalf("%s: %q: %v", which.name, reply, err)
		}
	})
}
