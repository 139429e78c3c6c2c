package semaphore_test

import (
	"context"
	"encoding/hex"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// This file plays the Java side: it sends what Redisson 3.5x sends for each operation, with times by the
// client's clock, and reads the replies as Redisson does.

const javaForever int64 = 922337203685477 // the score of a permit that never expires

const (
	javaTryAcquire = `
local value = redis.call('get', KEYS[1])
if value and tonumber(value) >= tonumber(ARGV[1]) then
  redis.call('decrby', KEYS[1], ARGV[1])
  return 1
end
return 0`

	javaRelease = `
local value = redis.call('incrby', KEYS[1], ARGV[1])
redis.call('publish', KEYS[2], value)`

	javaTrySet = `
if redis.call('get', KEYS[1]) then
  return 0
end
redis.call('set', KEYS[1], ARGV[1])
redis.call('publish', KEYS[2], ARGV[1])
return 1`

	javaAdd = `
local value = tonumber(redis.call('get', KEYS[1]) or 0) + tonumber(ARGV[1])
redis.call('set', KEYS[1], value)
redis.call('publish', KEYS[2], value)`

	// ARGV: n, expiry, now, forever, ids
	javaTryAcquireExpirable = `
local gone = redis.call('zrangebyscore', KEYS[2], 0, ARGV[3], 'limit', 0, ARGV[1])
if #gone > 0 then
  redis.call('zrem', KEYS[2], unpack(gone))
  local free = redis.call('incrby', KEYS[1], #gone)
  if free > 0 then redis.call('publish', KEYS[3], free) end
end
local value = redis.call('get', KEYS[1])
if value and tonumber(value) >= tonumber(ARGV[1]) then
  redis.call('decrby', KEYS[1], ARGV[1])
  for i = 5, #ARGV do redis.call('zadd', KEYS[2], ARGV[2], ARGV[i]) end
  local ttl = redis.call('pttl', KEYS[1])
  if ttl > 0 then redis.call('pexpire', KEYS[2], ttl) end
  return 'OK'
end
local first = redis.call('zrange', KEYS[2], 0, 0, 'withscores')
if first[1] and first[2] ~= ARGV[4] then return ':' .. first[2] end
return nil`

	// ARGV: now, ids
	javaTryReleaseExpirable = `
for i = 2, #ARGV do
  local due = redis.call('zscore', KEYS[2], ARGV[i])
  if not due or tonumber(due) <= tonumber(ARGV[1]) then return 0 end
end
local removed = 0
for i = 2, #ARGV do removed = removed + redis.call('zrem', KEYS[2], ARGV[i]) end
redis.call('incrby', KEYS[1], removed)
redis.call('publish', KEYS[3], removed)
return removed`

	// ARGV: id, expiry
	javaUpdateLease = `
if redis.call('zscore', KEYS[2], ARGV[1]) then
  redis.call('zadd', KEYS[2], ARGV[2], ARGV[1])
  return 1
end
return 0`
)

// java is a service in Java with getSemaphore(name) and getPermitExpirableSemaphore(name).
type java struct {
	t       testing.TB
	rdb     redis.UniversalClient
	name    string
	sharded bool // publishes and subscribes as Redisson since 3.22 in a cluster of Redis 7
	n       int
}

// script returns the script with the publishing command of this deployment.
func (j *java) script(s string) *redis.Script {
	if j.sharded {
		s = strings.ReplaceAll(s, "'publish'", "'spublish'")
	}
	return redis.NewScript(s)
}

func (j *java) keys() []string { return []string{j.name, scripts.SemChannel(j.name)} }

func (j *java) expirableKeys() []string {
	return []string{j.name, leasesKey(j.name), scripts.SemChannel(j.name)}
}

func (j *java) tryAcquire(n int) bool {
	j.t.Helper()
	ok, err := j.script(javaTryAcquire).Run(j.t.Context(), j.rdb, j.keys(), n).Int()
	require.NoError(j.t, err)
	return ok == 1
}

func (j *java) do(s string, args ...any) {
	j.t.Helper()
	if err := j.script(s).Run(j.t.Context(), j.rdb, j.keys(), args...).Err(); err != nil {
		require.ErrorIs(j.t, err, redis.Nil)
	}
}

func (j *java) release(n int)    { j.t.Helper(); j.do(javaRelease, n) }
func (j *java) trySet(n int)     { j.t.Helper(); j.do(javaTrySet, n) }
func (j *java) addPermits(n int) { j.t.Helper(); j.do(javaAdd, n) }

func (j *java) available() int {
	j.t.Helper()
	n, err := j.rdb.Get(j.t.Context(), j.name).Int()
	require.NoError(j.t, err)
	return n
}

// acquireExpirable returns the ids, or the answer that says until when to wait. A lease of 0 never ends.
func (j *java) acquireExpirable(n int, lease time.Duration) (ids []string, answer string) {
	j.t.Helper()
	now, due := time.Now().UnixMilli(), javaForever
	if lease > 0 {
		due = now + lease.Milliseconds()
	}
	args := []any{n, due, now, javaForever}
	for range n {
		j.n++
		raw := strings.Repeat("j", 10) + strconv.Itoa(100_000+j.n)
		args, ids = append(args, raw), append(ids, hex.EncodeToString([]byte(raw)))
	}
	answer, err := j.script(javaTryAcquireExpirable).Run(j.t.Context(), j.rdb, j.expirableKeys(), args...).Text()
	if err != nil {
		require.ErrorIs(j.t, err, redis.Nil)
	}
	if answer != "OK" {
		ids = nil
	}
	return ids, answer
}

func (j *java) releaseExpirable(ids ...string) int {
	j.t.Helper()
	args := []any{time.Now().UnixMilli()}
	for _, id := range ids {
		args = append(args, rawID(j.t, id))
	}
	n, err := j.script(javaTryReleaseExpirable).Run(j.t.Context(), j.rdb, j.expirableKeys(), args...).Int()
	require.NoError(j.t, err)
	return n
}

func (j *java) updateLease(id string, lease time.Duration) bool {
	j.t.Helper()
	due := time.Now().Add(lease).UnixMilli()
	ok, err := j.script(javaUpdateLease).Run(j.t.Context(), j.rdb, j.expirableKeys(), rawID(j.t, id), due).Int()
	require.NoError(j.t, err)
	return ok == 1
}

func rawID(t testing.TB, id string) string {
	t.Helper()
	raw, err := hex.DecodeString(id)
	require.NoError(t, err)
	require.Len(t, raw, 16)
	return string(raw)
}

// listen returns a function that blocks for the next message to Java's listener.
func (j *java) listen() func() string {
	j.t.Helper()
	sub := j.rdb.Subscribe(j.t.Context())
	if j.sharded {
		require.NoError(j.t, sub.SSubscribe(j.t.Context(), scripts.SemChannel(j.name)))
	} else {
		require.NoError(j.t, sub.Subscribe(j.t.Context(), scripts.SemChannel(j.name)))
	}
	j.t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(j.t.Context())
	require.NoError(j.t, err)
	return func() string {
		j.t.Helper()
		ctx, cancel := context.WithTimeout(j.t.Context(), testTimeout)
		defer cancel()
		m, err := sub.ReceiveMessage(ctx)
		require.NoError(j.t, err)
		return m.Payload
	}
}
