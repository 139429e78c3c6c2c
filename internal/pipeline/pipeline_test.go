package pipeline_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/pipeline"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestLine(t *testing.T) {
	t.Parallel()

	t.Run("calls that come while two are in flight travel together", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var l pipeline.Line[int]
			require.True(t, l.Begin(1))
			require.True(t, l.Begin(2))
			require.False(t, l.Begin(3))
			require.False(t, l.Begin(4))
			require.Equal(t, []int{3, 4}, l.Next(), "the first was answered")
			require.False(t, l.Begin(5))
			l.Queue(6, 7)
			require.Equal(t, []int{5, 6, 7}, l.Next(), "the second was answered")
			require.Nil(t, l.Next())
			require.True(t, l.Begin(8), "one is in flight")
		})
	})

	t.Run("those in flight hold up others for 20 ms", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var l pipeline.Line[int]
			require.True(t, l.Begin(1))
			require.True(t, l.Begin(2))
			time.Sleep(20*time.Millisecond - 1)
			require.False(t, l.Begin(3))
			time.Sleep(time.Nanosecond)
			require.True(t, l.Begin(4), "their connections may be dead")
			require.False(t, l.Begin(5), "this one may be well")
			require.Equal(t, []int{3, 5}, l.Next())
		})
	})

	t.Run("a job that is withdrawn is not sent", func(t *testing.T) {
		t.Parallel()
		l := pipeline.Line[int]{Width: 1}
		require.True(t, l.Begin(1))
		require.False(t, l.Begin(2))
		require.False(t, l.Begin(3))
		require.True(t, l.Withdraw(2))
		require.False(t, l.Withdraw(2))
		require.Equal(t, []int{3}, l.Next())
		require.False(t, l.Withdraw(3), "it is in flight")
	})
}

func TestLines(t *testing.T) {
	t.Parallel()
	var lines pipeline.Lines[string, pipeline.Line[int]]
	newLine := func() *pipeline.Line[int] { return new(pipeline.Line[int]) }
	single := redis.NewClient(&redis.Options{})
	defer single.Close()
	a := lines.Of(single, "a", "group", newLine)
	require.NotNil(t, a)
	require.Same(t, a, lines.Of(single, "b", "group", newLine))
	require.NotSame(t, a, lines.Of(single, "a", "other", newLine))
	require.Equal(t, 2, lines.Len())

	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	require.Nil(t, lines.Of(ring, "a", "group", newLine), "shards are not known by address")
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	require.Less(t, redistest.Running(t, func() {
		require.Nil(t, lines.Of(cluster, "a", "group", newLine))
	}), time.Second, "no server is asked")
}
