package main_test

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	cogwheel "github.com/cogwheel-go/cogwheel/cmd/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// FuzzReads lets the tool read keys of any type and contents under the names of objects: it prints what it can make
// of them, or one line that says what is wrong.
func FuzzReads(f *testing.F) {
	for shape := range uint8(5) {
		f.Add(shape, "mode", "read", 1.0)
		f.Add(shape, "id:1", "1", 1e300)
		f.Add(shape, "", "\xff\n{}", -1.0)
	}
	f.Add(uint8(0), "", "3:1700000000000", 0.0)
	f.Add(uint8(1), "", "0:0:9@1700000000000", 0.0)
	f.Add(uint8(1), "rate", "10", 0.0)
	server := redistest.Start(f)
	rdb := server.Client(f)
	f.Fuzz(func(t *testing.T, shape uint8, field, value string, score float64) {
		if math.IsNaN(score) {
			t.Skip("Redis refuses such a score")
		}
		objects := rdb.Pipeline()
		objects.FlushAll(t.Context())
		companions := []string{
			scripts.SuffixName("object", "timeout"), scripts.SuffixName("object", "fair:permits"),
			"redisson_lock_token:{object}", "redisson_lock_queue:{object}", "redisson_lock_timeout:{object}",
			"object:{key}", "object:{key}:window", "object:{key}:sliding",
			"{object}:delay:tasks", "{object}:delay:due", "{object}:delay:running", "{object}:delay:failed", "{object}:delay:attempts",
		}
		for i, key := range append(companions, "object") {
			if key != "object" && shape>>5&1 == 0 {
				continue // alone
			}
			switch (int(shape) + i) % 5 {
			case 0:
				objects.Set(t.Context(), key, value, 0)
			case 1:
				objects.HSet(t.Context(), key, field, value, "mode", value)
			case 2:
				objects.RPush(t.Context(), key, field, value)
			case 3:
				objects.SAdd(t.Context(), key, field, value)
			case 4:
				objects.ZAdd(t.Context(), key, redis.Z{Score: score, Member: value})
			}
		}
		_, err := objects.Exec(t.Context())
		require.NoError(t, err)
		for _, args := range [][]string{
			{"inspect", "object"},
			{"permits", "object"},
			{"limit", "object"},
			{"tasks", "object"},
			{"limit", "object:{key}"},
			{"limit", "object:{key}:window"},
			{"limit", "object:{key}:sliding"},
			{"limit", "--rate", "10/1s", "object:{key}"},
		} {
			for _, asJSON := range []bool{false, true} {
				requireReads(t, "redis://"+server.Addr(), asJSON, args)
			}
		}
	})
}

// requireReads runs a command that reads.
func requireReads(t *testing.T, url string, asJSON bool, args []string) {
	t.Helper()
	if asJSON {
		args = append(args, "--json")
	}
	var stdout, stderr bytes.Buffer
	status := cogwheel.Run(t.Context(), args, url, &stdout, &stderr)
	if status != 0 {
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), "%v: %q", args, stderr.String())
		return
	}
	require.Empty(t, stderr.String(), args)
	if asJSON {
		require.True(t, json.Valid(stdout.Bytes()), "%v: %q", args, stdout.String())
	}
}
