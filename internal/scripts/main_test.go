package scripts_test

import (
	"context"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// calls returns how often the server has run a command, inside scripts or not.
func calls(ctx context.Context, t *testing.T, rdb redis.Cmdable, command string) int {
	t.Helper()
	info, err := rdb.Info(ctx, "commandstats").Result()
	require.NoError(t, err)
	found := regexp.MustCompile(`cmdstat_` + command + `:calls=(\d+)`).FindStringSubmatch(info)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}
