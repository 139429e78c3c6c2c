package robustness

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// simpleTasks are queues as one writes them at first: a sorted set of ids by the instant from which each may be
// claimed, which is its time or the end of its lease. Servers poll, and renew nothing. Controls change parts of it.
type simpleTasks struct {
	rdb   redis.UniversalClient
	lease time.Duration
	skew  time.Duration

	noLease      bool // a claim removes the task
	cancelsAll   bool // also tasks that run
	clientsClock bool // due times are those of the client's clock
}

// The state of a task is "claimed:failures:losses:token"; claimed is 2 if it was cancelled meanwhile.
const taskState = `
local at, tasks, states = KEYS[1], KEYS[2], KEYS[3]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function state(id)
	local text = redis.call('HGET', states, id) or '0:0:0:0'
	local claimed, failures, losses, token = string.match(text, '(%d):(%d+):(%d+):(%d+)')
	return tonumber(claimed), tonumber(failures), tonumber(losses), tonumber(token)
end
local function set(id, claimed, failures, losses, token)
	redis.call('HSET', states, id, string.format('%d:%d:%d:%.0f', claimed, failures, losses, token))
end
local function remove(id)
	redis.call('ZREM', at, id)
	redis.call('HDEL', tasks, id)
	redis.call('HDEL', states, id)
	return 1
end
local function place(id, instant) redis.call('ZADD', at, string.format('%.0f', instant), id) end
`

var (
	// placeTask schedules the task of ARGV, or moves it if it has no payload.
	placeTask = redis.NewScript(taskState + `
local id, due, payload = ARGV[1], tonumber(ARGV[3]), ARGV[4]
local claimed, _, _, token = state(id)
if claimed > 0 or payload == '' and redis.call('HEXISTS', tasks, id) == 0 then
	return 0
end
if payload ~= '' then
	redis.call('HSET', tasks, id, payload)
	set(id, 0, 0, 0, token)
end
place(id, due > 0 and due or now + ARGV[2])
return 1`)
	cancelTask = redis.NewScript(taskState + `
local claimed, failures, losses, token = state(ARGV[1])
if claimed > 0 and ARGV[2] == '0' then
	set(ARGV[1], 2, failures, losses, token)
	return 0
end
return redis.call('HEXISTS', tasks, ARGV[1]) == 1 and remove(ARGV[1]) or 0`)
	claimTask = redis.NewScript(taskState + `
local id = redis.call('ZRANGEBYSCORE', at, '-inf', string.format('%.0f', now), 'LIMIT', 0, 1)[1]
if not id then
	return {}
end
local claimed, failures, losses, token = state(id)
if claimed == 2 then
	remove(id)
	return {}
end
token = math.max(token + 1, now)
local payload = redis.call('HGET', tasks, id)
if ARGV[2] == '1' then
	remove(id)
else
	set(id, 1, failures, losses + claimed, token)
	place(id, now + ARGV[1])
end
return {id, payload, failures, losses + claimed, string.format('%.0f', token)}`)
	// endTask ends an attempt. It runs again after a time, unless that is negative.
	endTask = redis.NewScript(taskState + `
local id, failures, losses, token, pause, payload = unpack(ARGV)
token, pause = tonumber(token), tonumber(pause)
local claimed, _, _, current = state(id)
if payload == '' and (claimed == 0 or current ~= token) then
	return 0
end
if pause < 0 or claimed == 2 then
	return remove(id)
end
if payload ~= '' then
	redis.call('HSET', tasks, id, payload)
end
set(id, 0, failures, losses, token)
place(id, now + pause)
return 1`)
)

func newSimpleTasks(change func(*simpleTasks)) func(redis.UniversalClient, *wheel.Wheel, Settings) (taskQueue, error) {
	return func(rdb redis.UniversalClient, _ *wheel.Wheel, s Settings) (taskQueue, error) {
		q := &simpleTasks{rdb: rdb, lease: s.Lease, skew: s.Skew}
		change(q)
		return q, nil
	}
}

func (q *simpleTasks) run(ctx context.Context, script *redis.Script, queue string, args ...any) *redis.Cmd {
	return script.Run(ctx, q.rdb, []string{queue + ":at", queue + ":tasks", queue + ":states"}, args...)
}

func (q *simpleTasks) place(ctx context.Context, queue, id string, in time.Duration, payload []byte) (bool, error) {
	due := int64(0)
	if q.clientsClock {
		due = time.Now().Add(q.skew + in).UnixMicro()
	}
	n, err := q.run(ctx, placeTask, queue, id, in.Microseconds(), due, payload).Int()
	return n == 1, err
}

func (q *simpleTasks) Schedule(ctx context.Context, queue, id string, in time.Duration, payload []byte) error {
	ok, err := q.place(ctx, queue, id, in, payload)
	if err == nil && !ok {
		err = errors.New("the task runs")
	}
	return err
}

func (q *simpleTasks) Reschedule(ctx context.Context, queue, id string, in time.Duration) (bool, error) {
	return q.place(ctx, queue, id, in, nil)
}

func (q *simpleTasks) Cancel(ctx context.Context, queue, id string) (bool, error) {
	n, err := q.run(ctx, cancelTask, queue, id, q.cancelsAll).Int()
	return n == 1, err
}

func (q *simpleTasks) Serve(ctx context.Context, queue string, handle func(context.Context, *delay.Task) error) error {
	var all sync.WaitGroup
	for range taskWorkers {
		all.Go(func() {
			for ctx.Err() == nil {
				if q.one(ctx, queue, handle) != nil {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	all.Wait()
	return nil
}

func (q *simpleTasks) one(ctx context.Context, queue string, handle func(context.Context, *delay.Task) error) error {
	leased, cancel := context.WithTimeout(ctx, q.lease*9/10)
	defer cancel()
	got, err := q.run(context.WithoutCancel(ctx), claimTask, queue, q.lease.Microseconds(), q.noLease).Slice()
	if err != nil || len(got) == 0 {
		return errors.Join(err, redis.Nil)
	}
	t := &delay.Task{}
	if _, err := fmt.Sscan(fmt.Sprintln(got...), &t.ID, &t.Payload, &t.Failures, &t.Losses, &t.Token); err != nil {
		return err
	}
	failures, pause := t.Failures, -time.Second
	switch err := guarded(leased, t, handle); {
	case err == nil:
	case ctx.Err() != nil:
		pause = 0
	case failures+1 < taskAttempts:
		failures, pause = failures+1, 50*time.Millisecond
	}
	payload := []byte(nil)
	if q.noLease {
		payload = t.Payload
	}
	return q.run(context.WithoutCancel(ctx), endTask, queue,
		t.ID, failures, t.Losses, t.Token, pause.Microseconds(), payload).Err()
}

// guarded returns an error in place of a panic.
func guarded(ctx context.Context, t *delay.Task, handle func(context.Context, *delay.Task) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return handle(ctx, t)
}

func (q *simpleTasks) Empty(ctx context.Context, queue string) (bool, error) {
	n, err := q.rdb.ZCard(ctx, queue+":at").Result()
	return n == 0, err
}

func (q *simpleTasks) Close(context.Context) error { return nil }
