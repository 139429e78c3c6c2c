package check_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/check"
	"github.com/cogwheel-go/cogwheel/robustness/history"
)

func TestNothingAfterClose(t *testing.T) {
	t.Parallel()
	events := func(closed int64) []history.Event {
		var h history.History
		for _, e := range hold(1, 10, 20, 30, 40, 50) {
			h.Add(e)
		}
		h.Add(history.Event{Step: history.Closed, Client: history.ClientID(1, 0), At: closed})
		return h.Events()
	}
	require.Empty(t, check.NothingAfterClose(events(30)))
	require.Len(t, check.NothingAfterClose(events(29)), 1)
}
