package waitqueue_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cogwheel-go/cogwheel/internal/waitqueue"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// step is one thing that happens in a history.
type step struct {
	do    string // wait, stay, try, func, cancel, release, lost (a release whose message is lost), pass
	n     int
	after time.Duration
}

func steps(rt *rapid.T) []step {
	one := rapid.Custom(func(rt *rapid.T) step {
		return step{
			do:    rapid.SampledFrom([]string{"wait", "wait", "stay", "try", "func", "cancel", "release", "lost", "pass"}).Draw(rt, "do"),
			n:     rapid.IntRange(1, 4).Draw(rt, "n"),
			after: time.Duration(rapid.IntRange(0, 30).Draw(rt, "after")) * 100 * time.Millisecond,
		}
	})
	return rapid.SliceOfN(one, 1, 40).Draw(rt, "steps")
}

// history is what came of the steps.
type history struct {
	free, held, put int
	order           []int // arrivals in the order of their grants, of one attempt after the other
	stranded        bool  // a waiter waits although what it wants has been free for a poll interval
	most            int   // attempts at a time
	left            int   // queues that were not freed
}

// faults returns what is wrong with a history.
func (h *history) faults() (list []string) {
	if h.free+h.held != h.put {
		list = append(list, fmt.Sprintf("%d free and %d held of %d", h.free, h.held, h.put))
	}
	for i := 1; i < len(h.order); i++ {
		if h.order[i] < h.order[i-1] {
			list = append(list, fmt.Sprintf("%d was served after %d", h.order[i], h.order[i-1]))
		}
	}
	if h.stranded {
		list = append(list, "stranded")
	}
	if h.most > 1 {
		list = append(list, fmt.Sprintf("%d attempts at a time", h.most))
	}
	if h.left > 0 {
		list = append(list, fmt.Sprintf("%d queues left", h.left))
	}
	return list
}

// request is one waiter of a history. A fault of the server under test may serve them in another order.
type request struct{ id, n int }

type modelServer struct {
	server
	grants   []request
	queued   bool // attempts wait before they are sent
	backward bool // negative control: serves the last first
	forget   bool // negative control: loses what is given back
}

func (s *modelServer) attempt(_ string, batch []*waitqueue.Waiter[request]) (time.Duration, error) {
	s.mu.Lock()
	s.inFlight++
	s.most = max(s.most, s.inFlight)
	s.mu.Unlock()
	time.Sleep(s.rtt)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
	if s.backward {
		for _, w := range slices.Backward(batch) {
			s.grant(w)
		}
		return 0, nil
	}
	for _, w := range batch {
		if !s.grant(w) {
			break
		}
	}
	return 0, nil
}

func (s *modelServer) grant(w *waitqueue.Waiter[request]) bool {
	if w.Value.n > s.free {
		return false
	}
	s.free -= w.Value.n
	s.grants = append(s.grants, w.Value)
	w.Grant()
	return true
}

// play runs the steps in virtual time and returns what came of them.
func play(rt *rapid.T, s *modelServer, all []step) *history {
	h := &history{}
	w, err := wheel.New()
	require.NoError(rt, err)
	cfg := waitqueue.Config[string, request]{
		MaxBatch: 3, Poll: poll, Listen: s.Listen,
		GiveBack: func(_ string, vs []request) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, v := range vs {
				if !s.forget {
					s.free += v.n
				}
			}
		},
	}
	queued := time.Duration(0)
	if s.queued {
		queued = s.rtt / 2
	}
	asksAfter(&cfg, queued, s.attempt)
	g := waitqueue.New(w, cfg)
	var cancels []func()
	var waiting, stays int
	ended := func(v request, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		waiting--
		if err == nil {
			h.held += v.n
		}
	}
	begin := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		waiting++
	}
	newContext := func() context.Context {
		ctx, cancel := context.WithCancel(context.Background())
		cancels = append(cancels, cancel)
		return ctx
	}
	for i, st := range all {
		v := request{i, st.n}
		switch st.do {
		case "wait":
			begin()
			go func(ctx context.Context) { ended(g.Wait(ctx, "name", v)) }(newContext())
		case "stay":
			begin()
			stays += v.n
			go func(ctx context.Context) {
				wait := func(done <-chan request) bool {
					select {
					case <-done:
						return true
					case <-ctx.Done():
						return false
					}
				}
				if told, err := g.Stay(ctx, "name", v, wait, func() func(request, error) { return ended }); told {
					ended(v, err)
				}
			}(newContext())
		case "try":
			begin()
			go func() { ended(g.Try(context.Background(), "name", v)) }()
		case "func":
			begin()
			g.WaitFunc(newContext(), "name", v, ended)
		case "cancel":
			if len(cancels) > 0 {
				cancels[st.n%len(cancels)]()
			}
		case "release", "lost":
			h.put += st.n
			s.release(st.n, st.do == "lost")
		}
		synctest.Wait()
		time.Sleep(st.after)
		synctest.Wait()
	}
	time.Sleep(2*poll + 50*s.rtt)
	synctest.Wait()
	before := waiting
	s.release(0, false)
	time.Sleep(50 * s.rtt)
	synctest.Wait()
	h.stranded = waiting != before
	for _, cancel := range cancels {
		cancel()
	}
	s.release(stays, false)
	h.put += stays
	time.Sleep(10*poll + time.Minute)
	synctest.Wait()
	h.left = g.Len()
	require.NoError(rt, g.Close(context.Background(), errClosed))
	require.Zero(rt, waiting)
	require.Zero(rt, w.Len())
	_, err = w.Stop(context.Background())
	require.NoError(rt, err)
	h.free, h.most = s.free, s.most
	for _, v := range s.grants {
		h.order = append(h.order, v.id)
	}
	return h
}

func draw(rt *rapid.T) (time.Duration, []step) {
	rtt := time.Duration(rapid.IntRange(1, 400).Draw(rt, "rtt")) * time.Millisecond
	return rtt, steps(rt)
}

func TestGroup_ServesInOrderLosesNoPermitAndStrandsNobody(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		rtt, all := draw(rt)
		rapid.SyncTest(rt, func(rt *rapid.T) {
			h := play(rt, &modelServer{server: server{rtt: rtt}, queued: rapid.Bool().Draw(rt, "queued")}, all)
			require.Empty(rt, h.faults())
		})
	})
}

// The check above finds servers that do not do their part.
func TestGroup_TheCheckHasTeeth(t *testing.T) {
	t.Parallel()
	const rtt = 100 * time.Millisecond
	faults := func(s *modelServer, all ...step) (found []string) {
		s.rtt = rtt
		rapid.Check(t, func(rt *rapid.T) {
			rapid.SyncTest(rt, func(rt *rapid.T) {
				s := &modelServer{server: server{rtt: rtt}, queued: true, backward: s.backward, forget: s.forget}
				found = play(rt, s, all).faults()
			})
		})
		return found
	}
	wait, cancel := step{do: "wait", n: 1}, step{do: "cancel", n: 1}
	one, two := step{do: "release", n: 1, after: time.Second}, step{do: "release", n: 2, after: time.Second}

	inTurn := []step{wait, wait, {do: "pass", after: time.Second}, two}
	require.Empty(t, faults(&modelServer{}, inTurn...))
	require.NotEmpty(t, faults(&modelServer{backward: true}, inTurn...))

	tooLate := []step{one, {do: "wait", n: 1, after: rtt}, cancel}
	require.Empty(t, faults(&modelServer{}, tooLate...))
	require.NotEmpty(t, faults(&modelServer{forget: true}, tooLate...))
}
