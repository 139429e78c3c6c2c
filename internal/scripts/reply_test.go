package scripts_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

func replied(value any) *redis.Cmd {
	var cmd redis.Cmd
	cmd.SetVal(value)
	return &cmd
}

func TestFlags(t *testing.T) {
	t.Parallel()
	flags, err := scripts.Flags(replied([]any{int64(1), int64(0)}), 2)
	require.NoError(t, err)
	require.Equal(t, []bool{true, false}, flags)
	for _, reply := range []any{
		nil, "1", int64(1), []any{}, []any{int64(1)}, []any{int64(1), int64(2)}, []any{int64(-1), int64(0)}, []any{int64(1), "x"},
	} {
		_, err := scripts.Flags(replied(reply), 2)
		require.ErrorIs(t, err, scripts.ErrReply, "%v", reply)
	}
}

func TestFlag(t *testing.T) {
	t.Parallel()
	one, err := scripts.Flag(replied(int64(1)))
	require.NoError(t, err)
	require.True(t, one)
	for _, reply := range []any{nil, "x", int64(2), int64(-1), []any{int64(1)}} {
		one, err := scripts.Flag(replied(reply))
		require.ErrorIs(t, err, scripts.ErrReply, "%v", reply)
		require.False(t, one)
	}
}
