package calls_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redisconn"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// A caller that ends the goroutine which tells it of its reply stops neither the batch nor the line. There are more
// of them than batches may be in flight.
func TestSender_CallersThatEndTheirGoroutine(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t)
	s, name := newSender(t, rdb), redistest.Name(t)
	const callers = 100
	told := make(chan error, callers)
	for i := range callers {
		r := take(fmt.Sprint(name, i), "id")
		r.Late = func(r redisconn.Reply) {
			told <- r.Err()
			runtime.Goexit()
		}
		s.Go(t.Context(), r)
		if i%4 == 0 { // alone in its batch
			require.NoError(t, <-told)
		}
	}
	for range callers - callers/4 {
		require.NoError(t, <-told)
	}
	mustTake(t, s, name)
}

// Prepare may run hooks of the redis client.
func TestSender_PrepareThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	for name, misbehave := range map[string]func(){
		"panic":  func() { panic("a hook panics") },
		"Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, key := newSender(t, redistest.Shared(t).Client(t)), redistest.Name(t)
			s.Prepare = misbehave
			for i := range 100 {
				mustTake(t, s, fmt.Sprint(key, i))
			}
		})
	}
}
