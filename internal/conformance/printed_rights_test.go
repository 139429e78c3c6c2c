package conformance_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// Each ACL SETUSER line in a document runs as it is printed, also if new users have all channels, as in Redis 6.2,
// and if the user exists already. Then the user has the printed channels and no others.
func TestRights_LinesRunAsPrinted(t *testing.T) {
	t.Parallel()
	documents, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	var lines []string
	for _, document := range append(documents, "../../README.md") {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if words, ok := strings.CutPrefix(strings.TrimSpace(line), "ACL SETUSER "); ok {
				lines = append(lines, words)
			}
		}
	}
	require.GreaterOrEqual(t, len(lines), 4)
	for _, channels := range []string{"allchannels", "resetchannels"} {
		server := redistest.Start(t, "--acl-pubsub-default", channels)
		rdb := server.Client(t)
		for _, line := range lines {
			line = strings.ReplaceAll(line, "PASSWORD", "secret")
			words := []any{"ACL", "SETUSER"}
			for word := range strings.FieldsSeq(line) {
				words = append(words, word)
			}
			for range 2 {
				require.NoError(t, rdb.Do(t.Context(), words...).Err(), "new users have %s: ACL SETUSER %s", channels, line)
			}
			user := words[2].(string)
			for _, listed := range must(rdb.Do(t.Context(), "ACL", "LIST").StringSlice()) {
				if strings.HasPrefix(listed, "user "+user+" ") {
					require.ElementsMatch(t, kindOf(strings.Fields(line), "&"), kindOf(strings.Fields(listed), "&"), line)
					require.NotContains(t, listed, "allchannels", line)
				}
			}
		}
	}
}

// The lines of two packages make one line, as docs/operations.md says: Redis takes rights that are given twice.
func TestRights_LinesOfTwoPackagesMakeOne(t *testing.T) {
	t.Parallel()
	locks, limits := redistest.DocumentedRights(t, "redislock", "app:"), redistest.DocumentedRights(t, "ratelimit", "app:")
	server := redistest.Start(t)
	rightsOf := func(user string, rights ...string) string {
		server.User(t, user, rights...)
		for _, listed := range must(server.Client(t).Do(t.Context(), "ACL", "LIST").StringSlice()) {
			if rest, ok := strings.CutPrefix(listed, "user "+user+" "); ok {
				words := strings.Fields(rest)
				slices.Sort(words)
				return strings.Join(words, " ")
			}
		}
		return ""
	}
	both := rightsOf("both", append(locks, limits...)...)
	for _, right := range limits {
		if !slices.Contains(locks, right) {
			locks = append(locks, right)
		}
	}
	require.Equal(t, rightsOf("union", locks...), both)
	require.NotEqual(t, rightsOf("fewer", locks[:len(locks)-1]...), both)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
