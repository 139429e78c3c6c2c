// Upgrade uses one object of each kind as its standard input says, in one version of the library. The tests beside it
// run two versions of the program against one server.
//
//	upgrade -kinds                        # print the kinds that this version has, one a line
//	upgrade -addr host:port -lease 30s    # serve requests, one JSON object a line
//
// The program of an older version gets the same requests, so a verb and a kind keep their meaning. What means something
// else gets another name. Kinds of new API stand in a file of their own, which an older version can do without.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

// A request names an object by kind and name, and for most verbs a hold of this process.
type request struct {
	ID   int64
	Do   string
	Kind string
	Name string
	Hold string
	N    int64
}

// A reply has the ID of its request. An acquisition that waits has two: "waits", when it finds the object held, and its
// end.
type reply struct {
	ID     int64
	Result string
	Token  int64 // the fencing token of a grant; 0 if the kind has none
}

// An object is of one kind, which has some of the methods.
type object struct {
	set     func(ctx context.Context, n int64) (bool, error)
	acquire func(ctx context.Context, n int64, wait bool) (hold, error)
	force   func(ctx context.Context) (bool, error)
	state   func(ctx context.Context) (string, error)
	waiting func(ctx context.Context) (int64, error)
	take    func(ctx context.Context, n int64) (ratelimit.Result, error)
	peek    func(ctx context.Context) (ratelimit.Result, error)
}

// A hold is a lock or a grant.
type hold interface {
	Deadline() time.Time
	Done() <-chan struct{}
	Valid() bool
	Token() int64
	release(ctx context.Context) error
}

// kinds opens an object of each kind. The files that have the kinds add them.
var kinds = make(map[string]func(c *clients, name string) object)

//nolint:unparam // the result lets a declaration call it
func register(kind string, open func(c *clients, name string) object) struct{} {
	kinds[kind] = open
	return struct{}{}
}

// clients use one server. Their waiters do not poll: they get what another process frees only if it tells them.
type clients struct {
	locks   *redislock.Client
	permits *semaphore.Client
	limits  *ratelimit.Client
}

const never = time.Hour

// patience is longer than a busy machine takes to answer; the default timeout of limits is not.
const patience = 30 * time.Second

var lease time.Duration

func main() {
	list := flag.Bool("kinds", false, "print the kinds that this version has")
	addr := flag.String("addr", "", "the address of a Redis server")
	flag.DurationVar(&lease, "lease", redislock.DefaultLease, "the lease of locks and permits")
	flag.Parse()
	if *list {
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			fmt.Println(kind)
		}
		return
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // holds get lost by force
	log.SetOutput(os.Stderr)                       // which SetDefault discards too
	if err := serve(redis.NewClient(&redis.Options{Addr: *addr})); err != nil {
		log.Fatal(err)
	}
}

// contended is the key of a func() in the context of an acquisition, which is called if the object is held.
type contended struct{}

func open(rdb *redis.Client) (c *clients, err error) {
	c = new(clients)
	c.locks, err = redislock.New(
		rdb, redislock.WithPoll(never), redislock.WithLockDefaults(redislock.WithLease(lease)),
		redislock.WithHooks(redislock.Hooks{
			Contended: func(e redislock.Event) { e.Context.Value(contended{}).(func())() },
		}),
	)
	if err != nil {
		return nil, err
	}
	c.permits, err = semaphore.New(
		rdb, semaphore.WithPoll(never), semaphore.WithHooks(semaphore.Hooks{
			Contended: func(e semaphore.Event) { e.Context.Value(contended{}).(func())() },
		}),
	)
	if err != nil {
		return nil, err
	}
	c.limits, err = ratelimit.New(rdb, ratelimit.WithTimeout(patience))
	return c, err
}

// serve executes the requests of stdin side by side, until it ends.
func serve(rdb *redis.Client) error {
	c, err := open(rdb)
	if err != nil {
		return err
	}
	s := server{clients: c, replies: json.NewEncoder(os.Stdout), holds: make(map[string]hold)}
	requests := json.NewDecoder(os.Stdin)
	for {
		var r request
		if err := requests.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		go func() {
			result, token := s.do(r)
			s.reply(reply{r.ID, result, token})
		}()
	}
}

type server struct {
	clients *clients
	mu      sync.Mutex // of the fields below
	replies *json.Encoder
	holds   map[string]hold
}

func (s *server) reply(r reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.replies.Encode(r); err != nil {
		log.Fatal(err)
	}
}

// do executes a request. The result of a failed one is its error.
func (s *server) do(r request) (result string, token int64) {
	open := kinds[r.Kind]
	if open == nil {
		return "unknown kind", 0
	}
	o, ctx := open(s.clients, r.Name), context.Background()
	var err error
	switch r.Do {
	case "try", "acquire":
		return s.acquire(ctx, o, r)
	case "release":
		err = s.held(r).release(ctx)
		result = "released"
	case "outlive":
		result = outlive(s.held(r))
	case "lost":
		<-s.held(r).Done()
		result = "lost"
	case "set":
		result, err = choose("set", "set before")(o.set(ctx, r.N))
	case "force":
		result, err = choose("freed", "free")(o.force(ctx))
	case "state":
		result, err = o.state(ctx)
	case "waiting":
		var n int64
		n, err = o.waiting(ctx)
		result = fmt.Sprint(n, " waiting")
	case "take":
		var taken ratelimit.Result
		taken, err = o.take(ctx, r.N)
		result, _ = choose("granted", "denied")(taken.Allowed, nil)
	case "peek":
		var seen ratelimit.Result
		seen, err = o.peek(ctx)
		result = fmt.Sprint(seen.Remaining, " left")
	default:
		return "unknown request", 0
	}
	if errors.Is(err, redislock.ErrLost) || errors.Is(err, semaphore.ErrLost) {
		return "lost", 0
	}
	if err != nil {
		return "error: " + err.Error(), 0
	}
	return result, 0
}

func (s *server) acquire(ctx context.Context, o object, r request) (result string, token int64) {
	ctx = context.WithValue(ctx, contended{}, sync.OnceFunc(func() {
		if r.Do == "acquire" {
			s.reply(reply{ID: r.ID, Result: "waits"})
		}
	}))
	h, err := o.acquire(ctx, r.N, r.Do == "acquire")
	switch {
	case errors.Is(err, redislock.ErrLocked), errors.Is(err, semaphore.ErrNoPermits):
		return "denied", 0
	case err != nil:
		return "error: " + err.Error(), 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[r.Name+" "+r.Hold] = h
	return "granted", h.Token()
}

func (s *server) held(r request) hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holds[r.Name+" "+r.Hold]
}

// outlive waits until the lease that a hold has now is over, and says whether the hold was renewed.
func outlive(h hold) string {
	select {
	case <-h.Done():
		return "lost"
	case <-time.After(time.Until(h.Deadline())):
	}
	if !h.Valid() {
		return "lost"
	}
	return "valid"
}

func choose(yes, no string) func(bool, error) (string, error) {
	return func(is bool, err error) (string, error) {
		if is {
			return yes, err
		}
		return no, err
	}
}
