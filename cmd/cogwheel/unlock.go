package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cogwheel-go/cogwheel/redislock"
)

// unlocked is the answer of unlock.
type unlocked struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Freed bool   `json:"freed"`
	Lock  any    `json:"lock"` // as it was before
}

func unlock(ctx context.Context, t *tool) error {
	if t.holder != "" && t.force {
		return usageError("--holder and --force exclude each other")
	}
	found, err := t.find(ctx)
	if err != nil {
		return err
	}
	found = only(found, object.isLock)
	if len(found) == 0 || !found[0].Lock.Held {
		return fmt.Errorf("%w: %s: there is no held lock of that name", errNotFound, quote(t.name))
	}
	o := found[0]
	holds := slices.ContainsFunc(o.Lock.Holders, func(h holder) bool { return h.ID == t.holder })
	switch {
	case t.holder == "" && !t.force:
		if err := t.report(found, ""); err != nil {
			return err
		}
		return usageError("nothing was freed: add --holder ID to free that holder alone, or --force to free the lock " +
			"whatever holds it")
	case t.holder != "" && !holds:
		return fmt.Errorf("%w: %s is not held by %s", errNotFound, quote(t.name), quote(t.holder))
	}
	var freed bool
	err = t.withLocks(ctx, func(c *redislock.Client) (err error) {
		m := mutexOf(c, t.name, o.Kind, o.Lock.Mode == "write" || strings.HasSuffix(t.holder, ":write"))
		if t.force {
			freed, err = m.ForceUnlock(ctx)
		} else {
			freed, err = m.ForceUnlockHolder(ctx, t.holder)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case !freed:
		return fmt.Errorf("%w: %s: the hold has ended meanwhile", errNotFound, quote(t.name))
	case t.json:
		return t.printJSON(unlocked{t.name, o.Kind, freed, o.Lock})
	}
	for _, h := range o.Lock.Holders {
		if t.force || h.ID == t.holder {
			printf(t.out, "%s: freed of %s\n", quote(t.name), strings.Join(h.words(), " "))
		}
	}
	return nil
}
