package waitqueue_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/pubsub"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// answers is a hook of go-redis that answers each command.
type answers func()

func (a answers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a answers) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error {
		a()
		return nil
	}
}

func (a answers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A hook of the redis client that fails leaves the question open.
func TestChannels_DecideWithAHookThatFails(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer rdb.Close()
	answer := func() {}
	rdb.AddHook(answers(func() { answer() }))
	c := pubsub.NewChannels(rdb, redistest.Wheel(t), pubsub.Detect)
	redistest.CloseWith(t, c.Close)
	for _, fail := range []func(){func() { panic("a hook panics") }, runtime.Goexit} {
		answer = fail
		c.Decide()
		require.False(t, c.Decided())
	}
	answer = func() {}
	c.Decide()
	require.True(t, c.Decided())
}
