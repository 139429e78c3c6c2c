package main_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// Nobody serves this queue.
func TestTasks_TellsWhatIsOverdueAndWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Shared(t).Client(t), redistest.Name(t)
	url := "redis://" + redistest.Shared(t).Addr()
	c, err := delay.New(rdb, delay.WithWheel(redistest.Wheel(t)))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	queue := c.Queue(name)
	for i := range 150 {
		due := time.Now().Add(time.Duration(i-1) * time.Hour)
		require.NoError(t, queue.ScheduleAt(t.Context(), fmt.Sprint("order-", i), due, nil))
	}
	text := must(t, url, "tasks", name)
	require.Contains(t, text, "150 pending, 0 claimed, 0 failed")
	require.Contains(t, text, "listening  0 ")
	require.Regexp(t, `pending +order-0 +overdue by 1h\S* +0 bytes\n`, text)
	require.Regexp(t, `pending +order-99 +due in `, text)
	require.NotContains(t, text, "order-100")
	require.Contains(t, text, "and 50 more pending; see --rows")
	text = must(t, url, "tasks", "--rows", "150", name)
	require.Contains(t, text, "order-149")
	require.NotContains(t, text, "more")
	text = must(t, url, "inspect", name)
	require.Regexp(t, `next +overdue by 1h`, text)
	require.NotContains(t, text, "order-")
}
