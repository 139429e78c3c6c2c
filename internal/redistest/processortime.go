package redistest

import (
	"context"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
)

var mainThread = regexp.MustCompile(`used_cpu_(?:sys|user)_main_thread:([\d.]+)`)

// ProcessorTime returns how many seconds of processor time the main thread of a server has used.
func ProcessorTime(tb testing.TB, rdb redis.UniversalClient) (seconds float64) {
	tb.Helper()
	for _, m := range mainThread.FindAllStringSubmatch(rdb.Info(context.Background(), "cpu").Val(), -1) {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			tb.Fatal(err)
		}
		seconds += v
	}
	return seconds
}
