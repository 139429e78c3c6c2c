package ratelimit_test

import (
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// java plays a service in Java on one limiter: each method is one script of the commands that RRateLimiter's
// method sends, in their order, with the service's own clock and with its client id for the scope PerClient.
type java struct {
	t    *testing.T
	rdb  redis.UniversalClient
	name string
	id   string
	skew time.Duration
}

func (j java) keys() []string {
	value, permits := "{"+j.name+"}:value", "{"+j.name+"}:permits"
	return []string{j.name, value, value + ":" + j.id, permits, permits + ":" + j.id}
}

func (j java) now() int64 { return time.Now().Add(j.skew).UnixMilli() }

// javaLog begins the scripts that look at the log: its keys by the scope, and what its entries hold.
const javaLog = `
local rate, interval, scope = unpack(redis.call('HMGET', KEYS[1], 'rate', 'interval', 'type'))
assert(rate and interval and scope, 'RateLimiter is not initialized')
local value, permits = KEYS[2], KEYS[4]
if scope == '1' then value, permits = KEYS[3], KEYS[5] end
local function sum(members)
  local all = 0
  for _, m in ipairs(members) do
    local id, n = struct.unpack('Bc0I', m)
    all = all + n
  end
  return all
end
local function expire()
  local keep = tonumber(redis.call('HGET', KEYS[1], 'keepAliveTime') or 0)
  if keep > 0 then redis.call('PEXPIRE', KEYS[1], keep) else keep = redis.call('PTTL', KEYS[1]) end
  if keep > 0 then
    redis.call('PEXPIRE', value, keep)
    redis.call('PEXPIRE', permits, keep)
  end
end
`

// run runs a script and returns its reply: nil, which stands for no number, is -1.
func (j java) run(script string, args ...any) (int64, error) {
	n, err := j.rdb.Eval(j.t.Context(), script, j.keys(), args...).Int64()
	if errors.Is(err, redis.Nil) {
		return -1, nil
	}
	return n, err
}

func (j java) must(script string, args ...any) int64 {
	j.t.Helper()
	n, err := j.run(script, args...)
	require.NoError(j.t, err)
	return n
}

func (j java) trySetRate(rate int64, interval time.Duration, scope ratelimit.Scope, keepAlive time.Duration) bool {
	j.t.Helper()
	return j.must(`
redis.call('HSETNX', KEYS[1], 'rate', ARGV[1])
redis.call('HSETNX', KEYS[1], 'interval', ARGV[2])
redis.call('HSETNX', KEYS[1], 'keepAliveTime', ARGV[4])
local set = redis.call('HSETNX', KEYS[1], 'type', ARGV[3])
if set == 1 and tonumber(ARGV[4]) > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end
return set`, rate, interval.Milliseconds(), int(scope), keepAlive.Milliseconds()) == 1
}

// setRate is the form without a state to keep: it removes what was granted, as seen by this service.
func (j java) setRate(rate int64, interval time.Duration, scope ratelimit.Scope, keepAlive time.Duration) {
	j.t.Helper()
	j.must(`
redis.call('HSET', KEYS[1], 'rate', ARGV[1], 'interval', ARGV[2], 'type', ARGV[3], 'keepAliveTime', ARGV[4])
if tonumber(ARGV[4]) > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end
if ARGV[3] == '1' then return redis.call('DEL', KEYS[3], KEYS[5]) end
return redis.call('DEL', KEYS[2], KEYS[4])`, rate, interval.Milliseconds(), int(scope), keepAlive.Milliseconds())
}

// updateRate is the newer form, of something that exists, with or without the state.
func (j java) updateRate(rate int64, interval time.Duration, scope ratelimit.Scope, keepState bool) bool {
	j.t.Helper()
	keep := map[bool]int{false: 0, true: 1}[keepState]
	return j.must(`
local was = redis.call('HGET', KEYS[1], 'type')
if not was then return 0 end
redis.call('HSET', KEYS[1], 'rate', ARGV[1], 'interval', ARGV[2], 'type', ARGV[3], 'keepAliveTime', 0)
if was ~= ARGV[3] then return redis.call('DEL', unpack(KEYS, 2)) and 1 end
`+javaLog+`
if ARGV[5] == '0' then return redis.call('DEL', value, permits) and 1 end
redis.call('ZREMRANGEBYSCORE', permits, 0, ARGV[4] - interval)
redis.call('SET', value, math.max(0, rate - sum(redis.call('ZRANGE', permits, 0, -1))))
expire()
return 1`, rate, interval.Milliseconds(), int(scope), j.now(), keep) == 1
}

// acquire is one attempt, with an id of its own: -1 if it was granted, otherwise how many milliseconds to
// wait. twice sends it again, as a retry after a lost reply does.
func (j java) acquire(n int64, twice bool) (int64, error) {
	id, now, script := make([]byte, 16), j.now(), javaLog+`
local n, now = tonumber(ARGV[1]), tonumber(ARGV[2])
assert(tonumber(rate) >= n, 'Requested permits amount cannot exceed defined rate')
local left = redis.call('GET', value)
if left then
  local freed = sum(redis.call('ZRANGEBYSCORE', permits, 0, now - interval))
  if freed > 0 then
    redis.call('ZREMRANGEBYSCORE', permits, 0, now - interval)
    left = left + freed
    if left > tonumber(rate) then left = rate - sum(redis.call('ZRANGE', permits, 0, -1)) end
    redis.call('SET', value, left)
  end
else
  left = rate
  redis.call('SET', value, rate)
end
local wait = false
if tonumber(left) < n then
  wait = 3 + interval - (now - redis.call('ZRANGE', permits, 0, 0, 'WITHSCORES')[2])
else
  redis.call('ZADD', permits, now, struct.pack('Bc0I', #ARGV[3], ARGV[3], n))
  redis.call('DECRBY', value, n)
end
expire()
return wait`
	_, _ = rand.Read(id) // never fails
	wait, err := j.run(script, n, now, id)
	if twice && err == nil {
		return j.run(script, n, now, id)
	}
	return wait, err
}

// tryAcquire is acquire of a limiter that is set and of no more than its rate.
func (j java) tryAcquire(n int64, twice bool) (bool, time.Duration) {
	j.t.Helper()
	wait, err := j.acquire(n, twice)
	require.NoError(j.t, err)
	return wait < 0, time.Duration(max(0, wait)) * time.Millisecond
}

func (j java) available() int64 {
	j.t.Helper()
	return j.must(javaLog+`
local left = redis.call('GET', value)
if not left then
  redis.call('SET', value, rate)
  return tonumber(rate)
end
local old = redis.call('ZRANGEBYSCORE', permits, 0, ARGV[1] - interval)
if #old > 0 then
  redis.call('ZREMRANGEBYSCORE', permits, 0, ARGV[1] - interval)
  left = left + sum(old)
  redis.call('SET', value, left)
end
return tonumber(left)`, j.now())
}

// release puts permits back into the value, and leaves the log as it is.
func (j java) release(n int64) {
	j.t.Helper()
	j.must(javaLog+`
local left = math.min(rate, (redis.call('GET', value) or rate) + ARGV[1])
redis.call('SET', value, left)
expire()
return 1`, n)
}

// expire is RExpirable's.
func (j java) expire(d time.Duration) {
	j.t.Helper()
	j.must(`for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[1]) end return 1`, d.Milliseconds())
}

func (j java) delete() bool {
	j.t.Helper()
	return j.must(`return redis.call('DEL', unpack(KEYS))`) > 0
}

// left is how many keys of the limiter there are.
func (j java) left() int64 {
	j.t.Helper()
	n, err := j.rdb.Exists(j.t.Context(), j.keys()...).Result()
	require.NoError(j.t, err)
	return n
}
