package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// play is a scenario in one direction, with an object of its own.
type play struct {
	object  string
	sides   [2]*process
	rdb     *redis.Client
	wheel   *wheel.Wheel
	pending map[string]<-chan reply // acquisitions that wait, by hold
	token   int64                   // the last one
}

// run takes the steps in order, and returns an error for the first that ends otherwise than it has to.
func (p *play) run(kind string, steps []step) error {
	for i, s := range steps {
		if s.kind == "" {
			s.kind = kind
		}
		r := p.take(s)
		what := fmt.Sprintf("step %d, %s %s %s %d by the %s version", i+1, s.kind, s.do, s.hold, s.n,
			[]string{"writing", "reading"}[s.side])
		if r.Result != s.want {
			return fmt.Errorf("%s: %s, want %s", what, r.Result, s.want)
		}
		if r.Token != 0 && r.Token <= p.token {
			return fmt.Errorf("%s: token %d after %d", what, r.Token, p.token)
		}
		p.token = max(p.token, r.Token)
	}
	return nil
}

func (p *play) take(s step) reply {
	switch s.do {
	case "pending":
		select {
		case r := <-p.pending[s.hold]:
			return r
		default:
			return reply{Result: "waits"}
		}
	case "await":
		return await(p.pending[s.hold])
	}
	replies := p.sides[s.side].send(request{Do: s.do, Kind: s.kind, Name: p.object, Hold: s.hold, N: s.n})
	r := await(replies)
	if s.do == "acquire" && r.Result == "waits" {
		p.pending[s.hold] = replies
		if err := p.awaitListener(); err != nil {
			return reply{Result: err.Error()}
		}
	}
	return r
}

// awaitListener waits until a client listens to channels of the object, and these stay the same for a while: a waiter
// looks at the object as soon as it listens to another one, and would get it also without a message.
func (p *play) awaitListener() error {
	ctx, cancel := context.WithTimeout(context.Background(), redistest.Patience)
	defer cancel()
	var last []string
	for same := 0; same < 10; same++ {
		channels, err := p.rdb.PubSubChannels(ctx, "*{"+p.object+"}*").Result()
		if err != nil {
			return err
		}
		slices.Sort(channels)
		if len(channels) == 0 || !slices.Equal(channels, last) {
			same, last = 0, channels
		}
		if err := p.wheel.Sleep(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("no client listens: %w", err)
		}
	}
	return nil
}

func await(replies <-chan reply) reply {
	select {
	case r, open := <-replies:
		if !open {
			return reply{Result: "the process has ended"}
		}
		return r
	case <-time.After(redistest.Patience):
		return reply{Result: "no reply"}
	}
}

// request and reply are those of the program.
type request struct {
	ID             int64
	Do, Kind, Name string
	Hold           string
	N              int64
}

type reply struct {
	ID     int64
	Result string
	Token  int64
}

// process is a program that serves requests.
type process struct {
	stdin    io.Writer
	mu       sync.Mutex
	requests int64
	replies  map[int64]chan reply // nil after the end of the process
}

// start starts a program, which ends with the test, or with the test's process.
func start(t *testing.T, program, addr string, lease time.Duration) *process {
	t.Helper()
	cmd := exec.Command(program, "-addr", addr, "-lease", lease.String()) // ends with its stdin
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{stdin: stdin, replies: make(map[int64]chan reply)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.read(stdout)
	}()
	t.Cleanup(func() {
		err := stdin.Close()
		<-ended
		require.NoError(t, errors.Join(err, cmd.Wait()))
	})
	return p
}

// send sends a request and returns the channel of its replies, which is closed if the process ends.
func (p *process) send(r request) <-chan reply {
	p.mu.Lock()
	defer p.mu.Unlock()
	replies := make(chan reply, 2)
	if p.replies == nil {
		close(replies)
		return replies
	}
	p.requests++
	r.ID = p.requests
	p.replies[r.ID] = replies
	_ = json.NewEncoder(p.stdin).Encode(r) // a process that has ended closes the channel
	return replies
}

func (p *process) read(stdout io.Reader) {
	for in := json.NewDecoder(stdout); ; {
		var r reply
		err := in.Decode(&r)
		p.mu.Lock()
		if err != nil {
			for _, replies := range p.replies {
				close(replies)
			}
			p.replies = nil
			p.mu.Unlock()
			return
		}
		p.replies[r.ID] <- r
		p.mu.Unlock()
	}
}
