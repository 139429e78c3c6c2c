package main_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	cogwheel "github.com/cogwheel-go/cogwheel/cmd/cogwheel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// newLimits returns a client of a service.
func newLimits(t *testing.T, rdb redis.UniversalClient) *ratelimit.Client {
	t.Helper()
	c, err := ratelimit.New(rdb, ratelimit.WithWheel(redistest.Wheel(t)), ratelimit.WithTimeout(redistest.Patience/3))
	require.NoError(t, err)
	redistest.CloseWith(t, c.Close)
	return c
}

// use takes permits of keys: key, number, key, number.
func use(t *testing.T, k *ratelimit.Limiter, uses ...any) {
	t.Helper()
	for i := 0; i < len(uses); i += 2 {
		r, err := k.AllowN(t.Context(), uses[i].(string), int64(uses[i+1].(int)))
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
}

// firstWords returns the first word of each line.
func firstWords(text string) (words []string) {
	for line := range strings.Lines(text) {
		words = append(words, strings.Fields(line)[0])
	}
	return words
}

// The keys of a prefix are listed by their used permits, whatever the algorithm is, and keys of others are not.
func TestLimitKeys_NearestToTheirLimitFirst(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb, address := server.Client(t), "redis://"+server.Addr()
	c := newLimits(t, rdb)
	long := strings.Repeat("long", 40)
	use(t, c.Limiter("api", ratelimit.PerHour(100)), "ada", 40, "bob", 70, long, 90, "{cem}", 10)
	use(t, c.Limiter("api", ratelimit.PerHour(100), ratelimit.WithHashTag("tag")), "dan", 55)
	use(t, c.Limiter("api:v2", ratelimit.PerHour(100)), "eva", 99)
	use(t, c.Limiter("ap*", ratelimit.PerHour(100)), "fay", 1)
	use(t, c.Limiter("login", ratelimit.PerDay(100), ratelimit.WithAlgorithm(ratelimit.FixedWindow)), "ada", 3, "bob", 7)
	use(t, c.Limiter("mail", ratelimit.PerDay(100), ratelimit.WithAlgorithm(ratelimit.SlidingWindow)), "ada", 3, "bob", 7)
	require.NoError(t, rdb.Set(t.Context(), "api:{permits}", "5", 0).Err())
	require.NoError(t, rdb.Set(t.Context(), "api:{text}", "x", ever).Err())
	require.NoError(t, c.StoredLimiter("api:{stored}").SetRate(t.Context(), ratelimit.PerHour(1)))

	text := must(t, address, "limit", "keys", "api")
	got := firstWords(text)
	require.Regexp(t, `^api:\{(long)+%sha256:[^}]*\}$`, got[0])
	require.Equal(t, []string{"api:{bob}", "api:{tag}:key:dan", "api:{ada}", "api:{%7Bcem%7D}"}, got[1:])
	require.Regexp(t, `(?m)^api:\{bob\} +limiter +full in 4[12]m`, text)
	require.Equal(t, []string{"ap*:{fay}"}, firstWords(must(t, address, "limit", "keys", "ap*")), "no pattern")
	text = must(t, address, "limit", "keys", "login")
	require.Equal(t, []string{"login:{bob}:window", "login:{ada}:window"}, firstWords(text))
	require.Regexp(t, `(?m)^login:\{bob\}:window +limiter of fixed windows +used 7, full in `, text)
	text = must(t, address, "limit", "keys", "mail")
	require.Equal(t, []string{"mail:{bob}:sliding", "mail:{ada}:sliding"}, firstWords(text))
	require.Contains(t, text, "used 7, full in ")

	var listed []struct {
		Name    string
		Objects []struct {
			Kind  string
			Limit struct {
				Key  string
				Used int64
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(must(t, address, "limit", "keys", "--json", "login")), &listed))
	require.Len(t, listed, 2)
	require.Equal(t, "login:{bob}:window", listed[0].Name)
	require.EqualValues(t, 7, listed[0].Objects[0].Limit.Used)

	r := run(t, address, "limit", "keys", "nothing")
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stderr, "no permits are used under the prefix nothing")
	r = run(t, address, "limit", "ada")
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stderr, "give --prefix PREFIX KEY, or list those of a prefix by cogwheel limit keys PREFIX")
}

// A list is bounded by the keys that it shows and by those that it looks through, and says so.
func TestLimitKeys_IsBounded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb, address := server.Client(t), "redis://"+server.Addr()
	k := newLimits(t, rdb).Limiter("api", ratelimit.Per(10_000, 1000*ever))
	for i := range 2500 {
		use(t, k, fmt.Sprint("user-", i), 1+i)
	}
	r := run(t, address, "limit", "keys", "--rows", "3", "api")
	require.Zero(t, r.status, r.stderr)
	require.Equal(t, []string{"api:{user-2499}", "api:{user-2498}", "api:{user-2497}"}, firstWords(r.stdout))
	require.Equal(t, "cogwheel: there are more than 3 keys; see --rows\n", r.stderr)
	r = run(t, address, "limit", "keys", "--scan", "1500", "--rows", "5000", "api")
	require.Zero(t, r.status, r.stderr)
	require.Contains(t, r.stderr, "the list is not complete: there are more than 1500 keys; see --scan")
	require.Less(t, len(firstWords(r.stdout)), 2500)
}

// SCAN may return a key twice, with other permits used.
func TestLimitKeys_ShowsAKeyOnce(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"a 9", "b 5", "c 1"}, cogwheel.Nearest("b", 5, "a", 8, "c", 1, "a", 9, "b", 5))
}

func TestLimitKeys_AsksAllMastersOfACluster(t *testing.T) {
	redistest.SkipIfShort(t)
	t.Parallel()
	cluster, prefix := redistest.SharedCluster(t), redistest.Name(t)
	k := newLimits(t, cluster.Client(t)).Limiter(prefix, ratelimit.PerDay(100))
	var want []string
	for i := range 20 {
		use(t, k, fmt.Sprint(i), 90-i)
		want = append(want, fmt.Sprint(prefix, ":{", i, "}"))
	}
	address := "redis://" + cluster.Masters[0].Addr() + "?addr=" + cluster.Masters[1].Addr()
	require.Equal(t, want, firstWords(must(t, address, "limit", "keys", prefix)))
	must(t, address, "limit", "reset", "--yes", "--prefix", prefix, "7")
	require.Equal(t, slices.Delete(want, 7, 8), firstWords(must(t, address, "limit", "keys", prefix)))
}

// A reset makes the whole burst of one key available, after a question.
func TestLimitReset(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb, address := server.Client(t), "redis://"+server.Addr()
	c := newLimits(t, rdb)
	long := strings.Repeat("long", 40)
	k := c.Limiter("api", ratelimit.PerDay(10))
	use(t, k, "ada", 10, "bob", 10, long, 10)
	left := func(key string) int64 {
		t.Helper()
		r, err := k.Peek(t.Context(), key)
		require.NoError(t, err)
		return r.Remaining
	}
	asks := regexp.MustCompile(`^reset api:\{ada\}, a limiter, full in \S+\? \[y/N\] cogwheel: nothing was changed: answer y, or add --yes\n$`)
	r := answering(t, strings.NewReader("n\n"), address, "limit", "reset", "api:{ada}")
	require.Equal(t, 2, r.status)
	require.Regexp(t, asks, r.stderr)
	require.Equal(t, 2, run(t, address, "limit", "reset", "api:{ada}").status, "without an answer")
	require.Zero(t, left("ada"))

	r = answering(t, strings.NewReader("y\n"), address, "limit", "reset", "api:{ada}")
	require.Zero(t, r.status, r.stderr)
	require.Equal(t, "api:{ada}: reset: all permits can be used\n", r.stdout)
	require.EqualValues(t, 10, left("ada"))
	require.Zero(t, left("bob"))
	require.JSONEq(t, `{"name": "api:{bob}", "kind": "limiter", "reset": true}`,
		must(t, address, "limit", "reset", "--json", "--yes", "--prefix", "api", "bob"))
	require.EqualValues(t, 10, left("bob"))
	must(t, address, "limit", "reset", "--yes", k.RedisKey(long)) // as the list shows it
	require.EqualValues(t, 10, left(long))

	require.NoError(t, c.StoredLimiter("smtp").SetRate(t.Context(), ratelimit.PerHour(1)))
	require.NoError(t, c.StoredLimiter("api:{stored}").SetRate(t.Context(), ratelimit.PerHour(1)))
	require.NoError(t, rdb.Set(t.Context(), "api:{permits}", "5", 0).Err())
	for name, want := range map[string]result{
		"smtp":          {2, "", "PREFIX:{KEY}"}, // a stored limiter
		"api:{stored}":  {1, "", "there is no limit"},
		"api:{permits}": {1, "", "there is no limit"},
		"api:{ada}":     {1, "", "there is no limit"}, // it is unused
	} {
		r := run(t, address, "limit", "reset", "--yes", name)
		require.Equal(t, want.status, r.status, name)
		require.Contains(t, r.stderr, want.stderr)
	}
	require.EqualValues(t, 3, rdb.Exists(t.Context(), "smtp", "api:{stored}", "api:{permits}").Val())
}

// The words of limit need the rights that the document gives: to list, those of a reader; to reset, those of the service.
func TestLimit_TheRightsOfTheWords(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	use(t, newLimits(t, server.Client(t)).Limiter("app:api", ratelimit.PerHour(10)), "ada", 1)
	as := func(user string) string {
		server.User(t, user, redistest.DocumentedRights(t, user, "app:")...)
		u := url.URL{Scheme: "redis", User: url.UserPassword(user, "secret"), Host: server.Addr()}
		return u.String()
	}
	must(t, as("looker"), "limit", "keys", "app:api")
	require.Equal(t, 3, run(t, as("looker"), "limit", "reset", "--yes", "app:api:{ada}").status)
	must(t, as("ratelimit"), "limit", "reset", "--yes", "app:api:{ada}")
}

// A key of GCRA is one whatever was done with it: the states of reservations and waiters have more parts.
func TestLimitKeys_KnowsTheStatesOfReservations(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb, address := server.Client(t), "redis://"+server.Addr()
	c := newLimits(t, rdb)
	k := c.Limiter("tokens", ratelimit.PerHour(7))
	for _, n := range []int64{7, 5} {
		r, err := k.TryReserve(t.Context(), fmt.Sprint("try", n), n)
		require.NoError(t, err)
		require.NotNil(t, r.Reservation)
		require.NoError(t, r.Reservation.Settle(t.Context(), n-2))
	}
	require.NoError(t, k.Wait(t.Context(), "waits"))
	_, err := k.Reserve(t.Context(), "reserves", 3)
	require.NoError(t, err)
	want := []string{"tokens:{try7}", "tokens:{reserves}", "tokens:{try5}", "tokens:{waits}"}
	require.ElementsMatch(t, want, firstWords(run(t, address, "limit", "keys", "tokens").stdout))
	for _, key := range want {
		require.Contains(t, run(t, address, "limit", key).stdout, ": limiter\n")
		require.Zero(t, run(t, address, "limit", "reset", "--yes", key).status)
	}
	require.Zero(t, rdb.Exists(t.Context(), want...).Val())
}
