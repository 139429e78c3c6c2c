package delays_test

import (
	"context"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const queue = "orders"

// impl is one implementation.
type impl struct {
	// schedule makes a task due at t, or at once if t is zero.
	schedule func(ctx context.Context, id string, t time.Time, payload []byte) error
	// serve runs due tasks for ever.
	serve func(ctx context.Context, workers int, handle func(id string)) error
	// close ends the implementation; nil is nothing to do.
	close func() error
}

// peers are the implementations in the order of the turns. fast ones look for due tasks every 10 ms.
var peers = []string{"cogwheel", "asynq", "asynq-fast"}

func newImpl(name string, rdb *redis.Client, lease time.Duration) (impl, error) {
	switch name {
	case "cogwheel":
		return newCogwheel(rdb, lease)
	case "asynq":
		return newAsynq(rdb, 0), nil
	case "asynq-fast":
		return newAsynq(rdb, 10*time.Millisecond), nil
	}
	return impl{}, fmt.Errorf("no implementation %q", name)
}

func newCogwheel(rdb *redis.Client, lease time.Duration) (impl, error) {
	w, err := wheel.New()
	if err != nil {
		return impl{}, err
	}
	c, err := delay.New(rdb, delay.WithWheel(w))
	if err != nil {
		return impl{}, err
	}
	q := c.Queue(queue, delay.WithLease(lease))
	return impl{
		schedule: func(ctx context.Context, id string, t time.Time, payload []byte) error {
			if t.IsZero() {
				return q.Schedule(ctx, id, 0, payload)
			}
			return q.ScheduleAt(ctx, id, t, payload)
		},
		serve: func(ctx context.Context, workers int, handle func(id string)) error {
			return q.Serve(ctx, workers, func(_ context.Context, t *delay.Task) error {
				handle(t.ID)
				return nil
			})
		},
		close: func() error {
			if err := c.Close(context.Background()); err != nil {
				return err
			}
			_, err := w.Stop(context.Background())
			return err
		},
	}, nil
}

// newAsynq returns asynq by its defaults, or with a check every so often.
func newAsynq(rdb *redis.Client, check time.Duration) impl {
	c := asynq.NewClientFromRedisClient(rdb)
	return impl{
		schedule: func(ctx context.Context, id string, t time.Time, payload []byte) error {
			opts := []asynq.Option{asynq.TaskID(id)}
			if !t.IsZero() {
				opts = append(opts, asynq.ProcessAt(t))
			}
			_, err := c.EnqueueContext(ctx, asynq.NewTask("close", payload), opts...)
			return err
		},
		serve: func(_ context.Context, workers int, handle func(id string)) error {
			s := asynq.NewServerFromRedisClient(rdb, asynq.Config{
				Concurrency: workers, LogLevel: asynq.FatalLevel,
				TaskCheckInterval: check, DelayedTaskCheckInterval: check,
			})
			err := s.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
				handle(t.ResultWriter().TaskID())
				return nil
			}))
			if err != nil {
				return err
			}
			select {}
		},
	}
}
