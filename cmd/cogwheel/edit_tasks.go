package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// paused is the answer of tasks pause and tasks resume.
type paused struct {
	Name    string `json:"name"`
	Paused  bool   `json:"paused"`
	Changed bool   `json:"changed"`
}

// pause pauses or resumes a queue. A queue that is so already is no error.
func (t *tool) pause(ctx context.Context) error {
	answer, hint := paused{Name: t.name, Paused: t.verb == "pause"}, ""
	err := t.withDelays(ctx, func(c *delay.Client) (err error) {
		q := c.Queue(t.name)
		if q.Err() != nil {
			return q.Err()
		}
		if !answer.Paused {
			answer.Changed, err = q.Resume(ctx)
			return err
		}
		switch count, err := t.countTasks(ctx, "due", "running", "failed"); {
		case err != nil:
			return err
		case count == 0:
			hint = "; the queue has no tasks" // perhaps the name is misspelt
		}
		answer.Changed, err = q.Pause(ctx)
		return err
	})
	says := map[paused]string{
		{t.name, true, true}: "paused: no process claims a task", {t.name, true, false}: "was paused before",
		{t.name, false, true}: "resumed", {t.name, false, false}: "was not paused",
	}
	switch {
	case err != nil:
		return err
	case t.json:
		return t.printJSON(answer)
	}
	printf(t.out, "%s: %s%s\n", quote(t.name), says[answer], hint)
	return nil
}

// changedTasks is the answer of tasks retry and tasks delete.
type changedTasks struct {
	Name    string `json:"name"`
	Retried int64  `json:"retried"`
	Deleted int64  `json:"deleted"`
}

// changeFailed retries or deletes all failed tasks of a queue. The timeout is that of each page of them.
func (t *tool) changeFailed(ctx context.Context) error {
	if !t.all {
		return usageError("tasks " + t.verb + " needs --all: it is for all failed tasks of the queue")
	}
	changed := changedTasks{Name: t.name}
	done, says := &changed.Retried, "retried"
	if t.verb == "delete" {
		done, says = &changed.Deleted, "deleted"
	}
	err := t.withDelays(ctx, func(c *delay.Client) error {
		q := c.Queue(t.name)
		if q.Err() != nil {
			return q.Err()
		}
		count, err := t.countFailed(ctx)
		switch {
		case err != nil:
			return err
		case count == 0:
			return fmt.Errorf("%w: %s: there is no failed task in a queue of that name", errNotFound, quote(t.name))
		}
		question := fmt.Sprintf("%s all %s of %s? [y/N] ", t.verb, plural(int(count), "failed task"), quote(t.name))
		if !t.yes && !t.confirm(ctx, question) {
			return usageError("nothing was changed: answer y, or add --yes")
		}
		change := q.RetryFailed
		if t.verb == "delete" {
			change = q.DeleteFailed
		}
		if *done, err = t.changePages(ctx, change); err != nil {
			return fmt.Errorf("%s %s, and then: %w", says, plural(int(*done), "failed task"), err)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case t.json:
		return t.printJSON(changed)
	}
	printf(t.out, "%s: %s %s\n", quote(t.name), says, plural(int(*done), "failed task"))
	return nil
}

func (t *tool) failedKey() string { return scripts.DelayKey(t.name, "failed") }

func (t *tool) countFailed(ctx context.Context) (int64, error) { return t.countTasks(ctx, "failed") }

// countTasks returns the number of tasks in parts of a queue.
func (t *tool) countTasks(ctx context.Context, parts ...string) (count int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	for _, part := range parts {
		n, err := t.rdb.ZCard(ctx, scripts.DelayKey(t.name, part)).Result()
		if err != nil {
			return 0, err
		}
		count += n
	}
	return count, nil
}

// confirm asks a question, and reports whether the answer is yes.
func (t *tool) confirm(ctx context.Context, question string) bool {
	printf(t.note, "%s", question)
	answers := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(t.in).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-answers:
		return answer == "y" || answer == "yes"
	case <-ctx.Done():
		return false
	}
}

// changePages calls change for the tasks that have failed by now, and returns for how many it returned true. A task
// that fails again meanwhile has failed later, unless the clock of Redis was set back: so no more are read than there
// are.
func (t *tool) changePages(
	ctx context.Context, change func(context.Context, string) (bool, error),
) (changed int64, err error) {
	count, err := t.countFailed(ctx)
	if err != nil {
		return 0, err
	}
	now, err := t.rdb.Time(ctx).Result()
	if err != nil {
		return 0, err
	}
	for read := int64(0); read < count; {
		n, done, err := t.changePage(ctx, now.UnixMicro(), change)
		changed += done
		if err != nil || n == 0 {
			return changed, err
		}
		read += n
	}
	return changed, nil
}

// changePage calls change for up to taskPage tasks that have failed until an instant, which share a script. It returns
// how many it has read, and for how many change returned true.
func (t *tool) changePage(
	ctx context.Context, until int64, change func(context.Context, string) (bool, error),
) (read, changed int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	by := redis.ZRangeBy{Min: "-inf", Max: strconv.FormatInt(until, 10), Count: taskPage}
	ids, err := t.rdb.ZRangeByScore(ctx, t.failedKey(), &by).Result()
	if err != nil {
		return 0, 0, err
	}
	var calls sync.WaitGroup
	var done atomic.Int64
	errs := make([]error, len(ids))
	for i, id := range ids {
		calls.Go(func() {
			ok, err := change(ctx, id)
			if errs[i] = err; ok {
				done.Add(1)
			}
		})
	}
	calls.Wait()
	return int64(len(ids)), done.Load(), cmp.Or(errs...)
}
