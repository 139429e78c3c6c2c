package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cogwheel-go/cogwheel"
	"github.com/cogwheel-go/cogwheel/delay"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/redislock"
	"github.com/cogwheel-go/cogwheel/semaphore"
)

var packages = []string{"redislock", "semaphore", "ratelimit", "delay"}

// checkAll asks whether the packages of --packages can work with this Redis as this user.
func checkAll(ctx context.Context, t *tool) error {
	var reports []*cogwheel.Report
	var failures []error
	for name := range strings.SplitSeq(t.packages, ",") {
		if !slices.Contains(packages, name) {
			return usageError(fmt.Sprintf("--packages %q: there are %s", name, strings.Join(packages, ", ")))
		}
		r, err := t.check(ctx, name)
		if r == nil {
			return err
		}
		reports = append(reports, r)
		if err != nil {
			failures = append(failures, err)
		}
	}
	if t.json {
		if err := t.printJSON(reports); err != nil {
			return err
		}
	} else {
		for _, r := range reports {
			_, _ = io.WriteString(t.out, r.String())
		}
	}
	if failures != nil {
		return fmt.Errorf("%w: %w", errFault, errors.Join(failures...))
	}
	return nil
}

// check checks one package. Without names, it asks about commands; with names, about their keys and channels
// too.
func (t *tool) check(ctx context.Context, name string) (r *cogwheel.Report, err error) {
	switch name {
	case "redislock":
		err = t.withLocks(ctx, func(c *redislock.Client) (err error) {
			of := noneFor(c.Check)
			for _, name := range t.names {
				of = append(of, c.Mutex(name), c.FairMutex(name), c.RWMutex(name))
			}
			r, err = c.Check(ctx, of...)
			return err
		})
	case "semaphore":
		err = t.withSemaphores(ctx, func(c *semaphore.Client) (err error) {
			of := noneFor(c.Check)
			for _, name := range t.names {
				of = append(of, c.CountingSemaphore(name), c.Semaphore(name, 0), c.FairSemaphore(name, 0))
			}
			r, err = c.Check(ctx, of...)
			return err
		})
	case "ratelimit":
		err = t.withLimitsOf(ctx, func(c *ratelimit.Client) (err error) {
			of := noneFor(c.Check)
			for _, name := range t.names {
				of = append(of, c.StoredLimiter(name))
			}
			r, err = c.Check(ctx, of...)
			return err
		})
	case "delay":
		err = t.withDelays(ctx, func(c *delay.Client) (err error) {
			of := noneFor(c.Check)
			for _, name := range t.names {
				of = append(of, c.Queue(name))
			}
			r, err = c.Check(ctx, of...)
			return err
		})
	}
	return r, err
}

// noneFor returns an empty slice of the type that check takes, which is not exported.
func noneFor[T any](func(context.Context, ...T) (*cogwheel.Report, error)) []T { return nil }
