package scripts_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// commandsOf returns the commands that a script's text calls.
func commandsOf(source string) (commands []string) {
	for _, found := range regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`).FindAllStringSubmatch(source, -1) {
		if !slices.Contains(commands, found[1]) {
			commands = append(commands, found[1])
		}
	}
	return commands
}

// content is what keys hold, with the kind of their expiry.
func content(ctx context.Context, t *testing.T, rdb *redis.Client, keys []string) (all []string) {
	t.Helper()
	for _, key := range keys {
		text := "none"
		switch kind := rdb.Type(ctx, key).Val(); kind {
		case "string":
			text = rdb.Get(ctx, key).Val()
		case "hash":
			text = fmt.Sprint(rdb.HGetAll(ctx, key).Val())
		case "zset":
			text = fmt.Sprint(rdb.ZRangeWithScores(ctx, key, 0, -1).Val())
		default:
			require.Equal(t, "none", kind)
		}
		ttl := rdb.PTTL(ctx, key).Val()
		if ttl > 0 {
			ttl = ttl.Round(5 * time.Second) // so far apart are those that differ, and so near those that do not
		}
		all = append(all, fmt.Sprintf("%s %q expires %v", key, text, ttl))
	}
	return all
}

// halves runs a script on what setup makes, as users who lack one right each, and returns the rights without which it
// fails and leaves something else than it found.
func halves(t *testing.T, s *scripts.Script, keys []string, setup func(ctx context.Context, rdb *redis.Client), args ...any) (found []string, failed int) {
	t.Helper()
	ctx, server := t.Context(), rightsServer(t)
	admin := server.Client(t)
	for _, command := range commandsOf(s.Source()) {
		user := "without-" + command
		require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", user, "reset", "on", "nopass", "~*", "+@all", "-"+strings.ToLower(command)).Err())
		require.NoError(t, admin.Del(ctx, keys...).Err())
		setup(ctx, admin)
		before := content(ctx, t, admin, keys)
		err := s.Run(ctx, server.Client(t, func(o *redis.Options) { o.Username, o.Password = user, "any" }), keys, args...).Err()
		if err == nil {
			continue
		}
		require.ErrorContains(t, err, "can't run this command", command)
		failed++
		if after := content(ctx, t, admin, keys); !slices.Equal(before, after) {
			found = append(found, fmt.Sprintf("%s: %v became %v", command, before, after))
		}
	}
	return found, failed
}

func rightsServer(t *testing.T) *redistest.Server {
	t.Helper()
	return redistest.Start(t)
}

// A script that lacks a right for one of its commands leaves everything as it was, whatever it found, as does one that finds a
// key of another kind.
func TestRateScripts_LeaveNoHalf(t *testing.T) {
	t.Parallel()
	log := []string{"{log}", "{log}:value", "{log}:permits"}
	entry := func(id string, n byte) string { return "\x10" + fmt.Sprintf("%-16s", id) + string([]byte{n, 0, 0, 0}) }
	now := func() float64 { return float64(time.Now().UnixMicro()) / 1000 }
	config := func(ctx context.Context, rdb *redis.Client, keepAlive int) {
		rdb.HSet(ctx, log[0], "rate", 10, "interval", 60_000, "type", 0, "keepAliveTime", keepAlive)
		if keepAlive > 0 {
			rdb.PExpire(ctx, log[0], 300*time.Second)
		}
	}
	// filled has one entry that has expired and two that have not.
	filled := func(ctx context.Context, rdb *redis.Client) {
		rdb.ZAdd(ctx, log[2], redis.Z{Score: now() - 90_000, Member: entry("old", 3)}, redis.Z{Score: now() - 30_000, Member: entry("a", 2)},
			redis.Z{Score: now() - 20_000, Member: entry("b", 1)})
		rdb.Set(ctx, log[1], 4, 0)
	}
	with := func(steps ...func(context.Context, *redis.Client)) func(context.Context, *redis.Client) {
		return func(ctx context.Context, rdb *redis.Client) {
			for _, step := range steps {
				step(ctx, rdb)
			}
		}
	}
	plain := func(ctx context.Context, rdb *redis.Client) { config(ctx, rdb, 0) }
	kept := func(ctx context.Context, rdb *redis.Client) { config(ctx, rdb, 600_000) }
	perClient := func(ctx context.Context, rdb *redis.Client) { rdb.HSet(ctx, log[0], "type", 1) }
	expiring := func(ctx context.Context, rdb *redis.Client) {
		for _, key := range log {
			rdb.PExpire(ctx, key, 200*time.Second)
		}
	}
	noValue := func(ctx context.Context, rdb *redis.Client) { rdb.Del(ctx, log[1]) }
	farAhead := func(ctx context.Context, rdb *redis.Client) {
		rdb.ZAdd(ctx, log[2], redis.Z{Score: now() + 3_600_000, Member: entry("far", 5)})
		rdb.Set(ctx, log[1], -1, 0)
	}
	nothing := func(context.Context, *redis.Client) {}
	state := func(value any, ttl time.Duration) func(context.Context, *redis.Client) {
		return func(ctx context.Context, rdb *redis.Client) { rdb.Set(ctx, "{k}", value, ttl) }
	}
	ahead := func() string { return fmt.Sprint(time.Now().Add(time.Minute).UnixMicro()) }

	for what, c := range map[string]struct {
		script *scripts.Script
		keys   []string
		setup  func(context.Context, *redis.Client)
		args   []any
		least  int // rights that it cannot do without
	}{
		"GCRA":                     {scripts.RateGCRA, []string{"{k}"}, state(ahead(), time.Minute), []any{1, int64(1e12), 0, 1, 1000, 0, 1}, 3},
		"GCRA, of no key":          {scripts.RateGCRA, []string{"{k}"}, nothing, []any{1, int64(1e12), 0, 1, 1000, 0, 1}, 3},
		"window":                   {scripts.RateWindow, []string{"{k}"}, state(3, 100*time.Second), []any{10, 100_000, 0, 1, 1, 1}, 3},
		"window, for those ahead":  {scripts.RateWindow, []string{"{k}"}, state(9, 50*time.Millisecond), []any{10, 100, 90, 1, 1, 5, 1}, 3},
		"window, of no key":        {scripts.RateWindow, []string{"{k}"}, nothing, []any{10, 100_000, 20, 1, 1, 1, 1}, 3},
		"log":                      {scripts.RateLog, log, plain, []any{"10", -1, 0, 0, entry("x", 1)}, 6},
		"log, filled":              {scripts.RateLog, log, with(plain, filled), []any{"10", -1, 0, 0, entry("x", 1)}, 7},
		"log, counted":             {scripts.RateLog, log, with(plain, filled), []any{"", -1, 0, 0, entry("x", 1)}, 8},
		"log, denied":              {scripts.RateLog, log, with(plain, filled), []any{"10", -1, 0, 0, entry("x", 9)}, 7},
		"log, kept alive":          {scripts.RateLog, log, with(kept, filled), []any{"10", -1, 0, 0, entry("x", 1)}, 8},
		"log, that expires":        {scripts.RateLog, log, with(plain, filled, expiring), []any{"10", -1, 0, 0, entry("x", 1)}, 8},
		"log, without its value":   {scripts.RateLog, log, with(plain, filled, noValue), []any{"10", -1, 0, 0, entry("x", 1)}, 7},
		"log, clock stepped back":  {scripts.RateLog, log, with(plain, filled, farAhead), []any{"10", -1, 0, 0, entry("x", 1)}, 7},
		"log, of those who wait":   {scripts.RateLog, log, with(plain, filled), []any{"10", 1, 20_000, 0, entry("x", 5), entry("y", 5)}, 7},
		"log, given back":          {scripts.RateLog, log, with(plain, filled), []any{"10", -1, 0, 1, entry("a", 2)}, 5},
		"log, given back and more": {scripts.RateLog, log, with(kept, filled), []any{"10", 0, 20_000, 1, entry("a", 2), entry("x", 3)}, 9},
		"log, one client's":        {scripts.RateLog, log, with(kept, perClient), []any{"10", -1, 0, 0, entry("x", 1)}, 2},
		"limit":                    {scripts.RateLimit, log[:1], kept, []any{1}, 2},
		"set, the first":           {scripts.RateSet, log, nothing, []any{"try", 10, 60_000, 0, 0, 0}, 5},
		"set, the first, kept":     {scripts.RateSet, log, nothing, []any{"try", 10, 60_000, 0, 600_000, 0}, 5},
		"set, anew":                {scripts.RateSet, log, with(plain, filled), []any{"set", 20, 60_000, 0, 0, 0}, 6},
		"set, anew, not kept":      {scripts.RateSet, log, with(kept, filled, expiring), []any{"set", 20, 60_000, 0, 0, 0}, 7},
		"set, with the state":      {scripts.RateSet, log, with(plain, filled), []any{"update", 20, 60_000, 0, 600_000, 1}, 9},
		"set, with what is left":   {scripts.RateSet, log, with(kept, filled, noValue), []any{"update", 20, 60_000, 0, 0, 1}, 9},
		"set, the other scope":     {scripts.RateSet, log, with(kept, filled), []any{"set", 20, 60_000, 1, 0, 1}, 7},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			found, failed := halves(t, c.script, c.keys, c.setup, c.args...)
			require.Empty(t, found)
			require.GreaterOrEqual(t, failed, c.least, "the scenario needs them")
		})
	}

	for what, c := range map[string]struct {
		script *scripts.Script
		args   []any
	}{
		"log":     {scripts.RateLog, []any{"10", -1, 0, 0, entry("x", 1)}},
		"reserve": {scripts.RateLog, []any{"10", 0, 60_000_000, 0, entry("x", 1)}},
		"back":    {scripts.RateLog, []any{"10", -1, 0, 1, entry("a", 2)}},
		"anew":    {scripts.RateSet, []any{"set", 20, 60_000, 0, 600_000, 0}},
		"keep":    {scripts.RateSet, []any{"update", 20, 60_000, 0, 600_000, 1}},
	} {
		t.Run("nor on keys of another kind, "+what, func(t *testing.T) {
			t.Parallel()
			rdb := rightsServer(t).Client(t)
			for i := range log {
				rdb.Del(t.Context(), log...)
				with(plain, filled)(t.Context(), rdb)
				rdb.Del(t.Context(), log[i])
				require.NoError(t, rdb.LPush(t.Context(), log[i], 1).Err())
				others := slices.Delete(slices.Clone(log), i, i+1)
				before := content(t.Context(), t, rdb, others)
				require.ErrorContains(t, c.script.Run(t.Context(), rdb, log, c.args...).Err(), "WRONGTYPE")
				require.Equal(t, before, content(t.Context(), t, rdb, others))
				require.Equal(t, "list", rdb.Type(t.Context(), log[i]).Val())
			}
		})
	}

	t.Run("and one that does is found (control)", func(t *testing.T) {
		t.Parallel()
		half := scripts.NewScript("half", "redis.call('SET', KEYS[1], 1) redis.call('PEXPIRE', KEYS[1], 100000)")
		found, _ := halves(t, half, []string{"{k}"}, nothing)
		require.Len(t, found, 1)
		require.Contains(t, found[0], "PEXPIRE")
	})
}
