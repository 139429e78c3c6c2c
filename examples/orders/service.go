package main

import (
	"context"
	"fmt"
	"log"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/delay"
)

// service takes orders and closes those that are not paid in time. Any number of processes serve the same orders. Their
// states and the stock are in Redis, in place of a database.
type service struct {
	rdb   *redis.Client
	queue *delay.Queue
	after time.Duration // until an order closes itself
}

const (
	statesKey = "{orders}:states" // hash: id -> "open", "paid" or "closed"
	stockKey  = "{orders}:stock"  // of items; an open and a paid order have one
)

// The store decides what becomes of an order, each step in one transaction. The schedule decides only when it is asked.
var (
	takeScript = redis.NewScript(`
		if redis.call('HSETNX', KEYS[1], ARGV[1], 'open') == 1 then
			redis.call('DECR', KEYS[2])
		end
		return redis.call('HGET', KEYS[1], ARGV[1])`)

	payScript = redis.NewScript(`
		local state = redis.call('HGET', KEYS[1], ARGV[1])
		if state == 'open' then
			redis.call('HSET', KEYS[1], ARGV[1], 'paid')
			return 'paid'
		end
		return state or ''`)

	// An order that was never taken is closed too, so that it is not taken later.
	closeScript = redis.NewScript(`
		local state = redis.call('HGET', KEYS[1], ARGV[1])
		if state == 'paid' or state == 'closed' then
			return 0
		end
		redis.call('HSET', KEYS[1], ARGV[1], 'closed')
		if state then
			redis.call('INCR', KEYS[2])
		end
		return 1`)
)

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}", s.take)
	mux.HandleFunc("POST /orders/{id}/pay", s.pay)
	mux.HandleFunc("GET /orders", s.list)
	return mux
}

// take schedules the end of an order before it takes the order: a process that dies between the two leaves a task without
// an order, never an order that stays open.
func (s *service) take(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if err := s.queue.Schedule(r.Context(), id, s.after, nil, delay.IfAbsent()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable) // the client may repeat the request
		return
	}
	state, err := takeScript.Run(r.Context(), s.rdb, []string{statesKey, stockKey}, id).Text()
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case state != "open":
		http.Error(w, "the order is "+state, http.StatusConflict)
	default:
		w.WriteHeader(http.StatusCreated)
		answer(w, "order %s is open for %v\n", id, s.after)
	}
}

// pay pays an open order. Its task may be cancelled or not: a task that runs all the same finds the order paid.
func (s *service) pay(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	state, err := payScript.Run(r.Context(), s.rdb, []string{statesKey}, id).Text()
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	case state == "":
		http.Error(w, "there is no such order", http.StatusNotFound)
		return
	case state != "paid":
		http.Error(w, "the order is "+state, http.StatusConflict)
		return
	}
	if _, err := s.queue.Cancel(r.Context(), id); err != nil {
		log.Print(err)
	}
	answer(w, "order %s is paid\n", id)
}

func (s *service) list(w http.ResponseWriter, r *http.Request) {
	states, err := s.rdb.HGetAll(r.Context(), statesKey).Result()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	for _, id := range slices.Sorted(maps.Keys(states)) {
		in := ""
		if task, err := s.queue.State(r.Context(), id); err == nil && task.Phase == delay.PhasePending {
			in = fmt.Sprint(" and closes in ", task.In.Round(time.Second))
		}
		answer(w, "order %s is %s%s\n", id, states[id], in)
	}
}

func answer(w http.ResponseWriter, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format, args...)
}

// closeOrder is the handler of the tasks. It may run twice for an order, and closes it once. A store without such a state
// compares the token of the task instead.
func (s *service) closeOrder(ctx context.Context, t *delay.Task) error {
	closed, err := closeScript.Run(ctx, s.rdb, []string{statesKey, stockKey}, t.ID).Bool()
	if err == nil && closed {
		fmt.Printf("order %s is closed\n", t.ID)
	}
	return err
}
