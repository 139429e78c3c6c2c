package recipes

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// TakeOrder takes an order that closes itself after half an hour. The task comes first: a process that dies between the
// two leaves a task without an order, which does nothing, and never an order that stays open.
func TakeOrder(ctx context.Context, orders *delay.Queue, db *sql.DB, id string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // the order is not taken after its task has run
	defer cancel()
	if err := orders.Schedule(ctx, id, 30*time.Minute, nil, delay.IfAbsent()); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, "INSERT INTO orders (id, state, token) VALUES ($1, 'open', 0)", id)
	return err
}

// PayOrder reports whether the order was open, and is paid now. The database decides; a task that Cancel does not
// reach finds the order paid.
func PayOrder(ctx context.Context, orders *delay.Queue, db *sql.DB, id string) (bool, error) {
	paid, err := db.ExecContext(ctx, "UPDATE orders SET state = 'paid' WHERE id = $1 AND state = 'open'", id)
	if err != nil {
		return false, err
	}
	if n, err := paid.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	if _, err := orders.Cancel(ctx, id); err != nil {
		log.Print(err)
	}
	return true, nil
}

// CloseOrders closes the orders that are due until ctx ends, in as many processes as call it.
func CloseOrders(ctx context.Context, orders *delay.Queue, db *sql.DB) error {
	return orders.Serve(ctx, 16, func(ctx context.Context, t *delay.Task) error {
		_, err := db.ExecContext(ctx,
			"UPDATE orders SET state = 'closed', token = $2 WHERE id = $1 AND token < $2 AND state = 'open'", t.ID, t.Token)
		return err
	})
}

// Changed lets a document be saved when no process has called Changed for it for two seconds, and at the latest ten
// seconds after the first call.
func Changed(ctx context.Context, saves *delay.Queue, document string, text []byte) error {
	return saves.Schedule(ctx, document, 2*time.Second, text, delay.WithMaxWait(10*time.Second))
}

// Webhook is the payload of a task.
type Webhook struct {
	URL  string
	Body []byte
}

// Webhooks returns the queue of webhooks: each is attempted ten times within about an hour and a half.
func Webhooks(delays *delay.Client) *delay.Queue {
	return delays.Queue("webhooks", delay.WithRetry(10, delay.Backoff(10*time.Second, time.Hour)))
}

// SendWebhook sends a webhook as soon as a process is free. The id names the event, for example "payment-7".
func SendWebhook(ctx context.Context, webhooks *delay.Queue, id string, hook Webhook) error {
	payload, err := json.Marshal(hook)
	if err != nil {
		return err
	}
	return webhooks.Schedule(ctx, id, 0, payload)
}

// Deliver returns the handler of the queue.
func Deliver(client *http.Client) func(context.Context, *delay.Task) error {
	return func(ctx context.Context, t *delay.Task) error {
		var hook Webhook
		if err := json.Unmarshal(t.Payload, &hook); err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, hook.URL, bytes.NewReader(hook.Body))
		if err != nil {
			return err
		}
		request.Header.Set("Idempotency-Key", t.ID) // the receiver may get it twice
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode >= 300 {
			return fmt.Errorf("%s answered %s", hook.URL, response.Status)
		}
		return nil
	}
}

// Register registers a periodic task. Each process calls it when it starts; there is one task.
func Register(ctx context.Context, tasks *delay.Queue, id string, rule wheel.Schedule) error {
	return scheduleNext(ctx, tasks, id, rule, time.Now(), delay.IfAbsent())
}

// Periodic returns the handler of a periodic task. It runs job, and then schedules the next run.
func Periodic(
	tasks *delay.Queue, rule wheel.Schedule, job func(context.Context) error,
) func(context.Context, *delay.Task) error {
	return func(ctx context.Context, t *delay.Task) error {
		var at time.Time // of this run; the clock of the process may be behind it
		if err := at.UnmarshalText(t.Payload); err != nil {
			return err
		}
		if err := job(ctx); err != nil {
			return err // it runs again after the backoff
		}
		if now := time.Now(); now.After(at) {
			at = now
		}
		scheduling, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // ctx may have ended
		defer cancel()
		return scheduleNext(scheduling, tasks, t.ID, rule, at)
	}
}

func scheduleNext(
	ctx context.Context, tasks *delay.Queue, id string, rule wheel.Schedule, after time.Time, opts ...delay.ScheduleOption,
) error {
	next := rule.Next(after)
	if next.IsZero() { // the rule has ended
		return nil
	}
	payload, err := next.MarshalText()
	if err != nil {
		return err
	}
	return tasks.ScheduleAt(ctx, id, next, payload, opts...)
}
