package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// crew is a group of worker processes. All of them write to one pipe, so their reports arrive in order.
type crew struct {
	ctx            context.Context // when it ends, the workers exit
	cancel         context.CancelFunc
	addr, lockName string
	members        []*exec.Cmd
	reports        *os.File // the workers' standard output
	events         chan event
}

// event is one report of a worker.
type event struct {
	worker int
	what   string
	at     time.Time
}

func newCrew(ctx context.Context, addr, lockName string) (*crew, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c := &crew{addr: addr, lockName: lockName, reports: w, events: make(chan event)}
	c.ctx, c.cancel = context.WithCancel(ctx)
	go func() {
		defer r.Close()
		for lines := bufio.NewScanner(r); lines.Scan(); {
			e := event{at: time.Now()}
			_, _ = fmt.Sscan(lines.Text(), &e.worker, &e.what)
			select {
			case c.events <- e:
			case <-c.ctx.Done():
			}
		}
	}()
	return c, nil
}

// hire starts a worker process. It runs this program with the arguments worker NUMBER LOCK WORKTIME.
func (c *crew) hire(workTime time.Duration) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	number := fmt.Sprint(len(c.members) + 1)
	cmd := exec.CommandContext(c.ctx, self, "worker", number, c.lockName, workTime.String())
	cmd.Env = append(os.Environ(), "REDIS_ADDR="+c.addr)
	cmd.Stdout, cmd.Stderr = c.reports, os.Stderr
	leash, err := cmd.StdinPipe() // the pipe closes when the tour exits or is killed, and then the worker exits
	if err != nil {
		return nil, err
	}
	cmd.Cancel = leash.Close
	cmd.WaitDelay = 2 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c.members = append(c.members, cmd)
	return cmd, nil
}

// next returns the next report. It blocks until there is one, or until ctx ends.
func (c *crew) next(ctx context.Context) (event, error) {
	select {
	case e := <-c.events:
		if e.what == failed {
			return e, fmt.Errorf("worker %d failed", e.worker)
		}
		return e, nil
	case <-ctx.Done():
		return event{}, context.Cause(ctx)
	}
}

// expect returns the next report that is no renewal, and an error if it is not what.
func (c *crew) expect(ctx context.Context, what string) (event, error) {
	e, err := c.next(ctx)
	for err == nil && e.what == renewed {
		e, err = c.next(ctx)
	}
	if err == nil && e.what != what {
		err = fmt.Errorf("worker %d %s, but the expected report was: %s", e.worker, e.what, what)
	}
	return e, err
}

// process returns the process ID of a worker.
func (c *crew) process(worker int) int { return c.members[worker-1].Process.Pid }

// dismiss stops the remaining workers and waits for them.
func (c *crew) dismiss() {
	c.cancel()
	for _, cmd := range c.members {
		_ = cmd.Wait()
	}
	_ = c.reports.Close()
}
