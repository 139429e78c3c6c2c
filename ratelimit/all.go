package ratelimit

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/algo"
	"github.com/cogwheel-go/cogwheel/ratelimit/internal/keys"
)

// Part is one of several limits that Client.All decides together, as [Limiter.Part] returns it. It is a value.
type Part struct {
	limiter *Limiter
	key     string
	cost    int64
}

// Part returns the limit of a key as a part for Client.All.
func (k *Limiter) Part(key string) Part { return Part{limiter: k, key: key, cost: 1} }

// Cost returns the part with the number of permits that one request takes from it: 1 to MaxRate, by default 1.
// The methods of the All return a *cogwheel.InvalidError for any other number, also for 0: leave out a part that costs
// nothing.
func (p Part) Cost(n int64) Part {
	p.cost = n
	return p
}

// Limit returns the limit of the part, or the zero Limit for the zero Part.
func (p Part) Limit() Limit {
	if p.limiter == nil {
		return Limit{}
	}
	return p.limiter.Limit()
}

// Name returns the prefix of the Limiter, or "" for the zero Part.
func (p Part) Name() string {
	if p.limiter == nil {
		return ""
	}
	return p.limiter.prefix
}

// All decides by several limits at once, such as the limit of a user and that of a service: a request takes the
// permits of all limits or of none. An All is a small value: the Client keeps nothing for it, so it may be made
// for each request. It is safe for concurrent use.
type All struct {
	client  *Client
	state   keys.ID
	algo    algo.Algorithm
	parts   *keys.All
	of      []Part
	one     bool   // there is one part, which behaves as if it were asked for alone
	name    string // the names of the parts, for hooks
	shadow  bool   // all parts have WithShadow
	blocked bool   // some part has a limit of 0
	err     error
}

// maxParts is the maximum number of limits that are decided together.
const maxParts = 16

// All returns a limiter for 1 to 16 parts, which must be made by Limiters of this Client. Their algorithms may
// differ. It does not talk to Redis.
//
// In a cluster or a Ring, the keys of all parts must share a hash tag; see WithHashTag. Two parts must not
// share a key: two limits of one user, such as one per second and one per day, need different prefixes. If the parts
// break a rule, or one of them is invalid, Err and all methods return a *cogwheel.InvalidError.
//
// An All takes nothing ahead of time and no part of a request, so it has no Reserve and no AllowUpTo. Names, keys and
// Reset are those of the Limiters of its parts.
//
// Either all parts or none are made by Limiters with WithShadow: an All is tried or enforced as a whole. To try a limit
// beside others, ask it in a call of its own, as docs/ratelimit.md shows.
func (c *Client) All(parts ...Part) *All {
	combined, err := newAllOf(c, parts)
	a := &All{client: c, of: slices.Clone(parts), err: err}
	if c.monitor.reports {
		a.name = namesOf(parts)
	}
	switch {
	case err != nil:
		return a
	case len(parts) == 1 && parts[0].cost == 1:
		a.state, a.algo, a.one = combined.IDs[0], combined.Parts[0].Algorithm, true
	default:
		a.state, a.algo = keys.ID{Options: keys.Options{Algorithm: allAlgorithm}, Key: identity(combined)}, combined
	}
	a.parts, a.shadow = combined, parts[0].limiter.shadow
	a.blocked = slices.ContainsFunc(parts, func(p Part) bool { return p.limiter.blocked() })
	return a
}

// Err returns the *cogwheel.InvalidError of invalid parts, or nil.
func (a *All) Err() error { return a.err }

// invalid returns the error of an invalid argument, or nil.
func (a *All) invalid(ctx context.Context, n int64) error {
	switch {
	case a.err != nil:
		return a.err
	case ctx == nil:
		return argument.Nil("context")
	case n < 0:
		return argument.Error("n", n, "must not be negative")
	}
	return nil
}

// decline denies n requests because some part has a limit of 0. The others are not asked.
func (a *All) decline(ctx context.Context, operation string, n int64) (Result, error) {
	err := a.invalid(ctx, n)
	if err == nil {
		if err = a.client.refusal(ctx); err != nil {
			err = keys.CallError(operation, a.algo.Label(a.state.Key), err)
		}
	}
	allowed := n == 0 && operation != opPeek
	r := declined(allowed, err)
	for _, p := range a.of {
		r.Parts = append(r.Parts, declined(allowed || !p.limiter.blocked(), err))
	}
	a.nameParts(&r)
	a.client.report(ctx, a.subject(n, nil), &r, err, a.client.start())
	return a.pass(ctx, n, r, err)
}

func (a *All) use(ctx context.Context, operation string, n int64) (*keys.State, error) {
	if err := a.invalid(ctx, n); err != nil {
		return nil, err
	}
	for i, p := range a.parts.Parts {
		if n > p.Limit.Burst/p.Cost {
			err := fmt.Errorf("%w: %d times %d of %s, %v", ErrExceedsLimit, n, p.Cost, a.parts.Keys[i], a.of[i].Limit())
			return nil, keys.CallError(operation, a.algo.Label(a.state.Key), err)
		}
	}
	return a.client.core.Use(a.state, a.algo), nil
}

// whole returns the result of a call as the result of an All, whose parts say which they are.
func (a *All) whole(r Result, err error) (Result, error) {
	if a.one && err == nil {
		part := r
		part.Reservation = nil
		r.Parts = []Result{part}
	}
	a.nameParts(&r)
	return r, err
}

func (a *All) nameParts(r *Result) {
	for i := range r.Parts {
		r.Parts[i].Name, r.Parts[i].Key = a.of[i].Name(), a.of[i].key
	}
}

// Allow is AllowN of one request.
func (a *All) Allow(ctx context.Context) (Result, error) { return a.AllowN(ctx, 1) }

// AllowN takes n times the cost of each part if every limit grants it, and otherwise nothing, in one step of
// Redis. It does not wait for permits. Blocking, the policy, cached denials, n = 0 and errors are those of
// Limiter.AllowN. ErrExceedsLimit means that some limit could never grant n requests.
//
// In the Result, Granted, Limit and Remaining count requests. Limit and Remaining are those of the part with
// the fewest requests left; RetryAfter and ResetAfter are the longest of all parts. Parts has the decision of
// each limit, in permits; if the request is denied, no part takes permits, even if its decision is Allowed.
//
// A lost reply can cost the permits of all limits, never those of some; for repeats see Limiter.AllowN. Requests of an
// All and waiters for a single part do not share a line: either may overtake the other.
func (a *All) AllowN(ctx context.Context, n int64) (Result, error) {
	return a.allow(ctx, "allow", n, func(s *keys.State) (Result, error) { return result(s.Allow(ctx, n)) })
}

// TryReserve is AllowN for a cost that is known only later: if the request is granted, Result.Reservation settles it
// with each limit, by a number for each part. WithDebt of each part applies to its limit.
func (a *All) TryReserve(ctx context.Context, n int64) (Result, error) {
	return a.allow(ctx, opReserve, n, func(s *keys.State) (Result, error) {
		return tryReserve(ctx, s, n, a.charges(n)...)
	})
}

// charges returns the charges of n requests, of which none can be given back.
func (a *All) charges(n int64) []charge {
	all := make([]charge, len(a.parts.IDs))
	for i, p := range a.parts.Parts {
		all[i] = charge{
			Span: algo.Span{N: n * p.Cost}, id: a.parts.IDs[i], algorithm: p.Algorithm,
			part: a.of[i], n: n * p.Cost, debt: a.of[i].limiter.mostDebt(),
		}
	}
	return all
}

// allow returns the answer of ask, which takes n requests or none, and reports it.
func (a *All) allow(
	ctx context.Context, operation string, n int64, ask func(*keys.State) (Result, error),
) (Result, error) {
	if a.blocked {
		return a.decline(ctx, operation, n)
	}
	began := a.client.start()
	s, err := a.use(ctx, operation, n)
	if err != nil {
		return a.pass(ctx, n, Result{}, a.refused(ctx, a.subject(n, nil), err))
	}
	defer s.Release()
	r, err := a.whole(ask(s))
	a.client.report(ctx, a.subject(n, s), &r, err, began)
	return a.pass(ctx, n, r, err)
}

// subject returns the subject of a call, for reports.
func (a *All) subject(n int64, s *keys.State) subject {
	return subject{kind: KindAll, name: a.name, n: n, shadow: a.shadow, state: s}
}

// refused reports a call that was refused before it had a state, and returns its error: none if WithShadow lets
// the request pass.
func (a *All) refused(ctx context.Context, of subject, err error) error {
	a.client.report(ctx, of, &Result{}, err, a.client.start())
	if a.shadow && passes(ctx, err) {
		return nil
	}
	return err
}

// namesOf returns the names of parts, as in "per-user and per-service".
func namesOf(parts []Part) string {
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.Name()
	}
	return strings.Join(names, " and ")
}

// Peek is Limiter.Peek for all parts: it returns the decision of Redis on one request, and takes nothing.
func (a *All) Peek(ctx context.Context) (Result, error) {
	if a.blocked {
		return a.decline(ctx, opPeek, 0)
	}
	s, err := a.use(ctx, opPeek, 0)
	if err != nil {
		return Result{}, err
	}
	defer s.Release()
	r, err := a.whole(result(s.Peek(ctx)))
	return a.pass(ctx, 0, r, err)
}

// Wait is WaitN of one request.
func (a *All) Wait(ctx context.Context) error { return a.WaitN(ctx, 1) }

// WaitN blocks until all limits grant n requests in one step, or until ctx ends. n = 0 returns at once.
//
// The waiters of one process for the same parts, in the same order, form a line. It asks Redis when all limits
// are likely to grant the first request, and at least once a second. It charges nothing ahead of time. So
// callers that ask for one of the limits alone, and waiters for other combinations, may be served before; a
// limit that others always use up can keep the line waiting. The policy and errors are those of Limiter.WaitN.
// If ctx ends during the call that grants the request, its permits serve the next waiter in line or are lost.
//
// Under WithShadow it asks once, as AllowN does.
func (a *All) WaitN(ctx context.Context, n int64) error {
	s, err := a.use(ctx, "wait", n)
	if err != nil {
		return a.refused(ctx, a.subject(n, nil).waiting(), err)
	}
	defer s.Release()
	if a.shadow && n > 0 {
		return a.client.askOnce(ctx, s, a.subject(n, s).waiting())
	}
	return a.client.wait(ctx, s, a.subject(n, s).waiting())
}

// WaitFunc is WaitN without blocking, as Limiter.WaitFunc is.
func (a *All) WaitFunc(ctx context.Context, n int64, f func(error)) (cancel func()) {
	argument.MustCall(f == nil)
	s, err := a.use(ctx, "wait", n)
	if err != nil {
		return a.client.refuse(f, a.refused(ctx, a.subject(n, nil).waiting(), err))
	}
	if a.shadow && n > 0 {
		return a.client.askOnceFunc(ctx, s, a.subject(n, s).waiting(), f)
	}
	return a.client.waitFunc(ctx, s, a.subject(n, s).waiting(), f)
}

// newAllOf checks the parts.
func newAllOf(c *Client, parts []Part) (*keys.All, error) {
	if len(parts) < 1 || len(parts) > maxParts {
		return nil, argument.Error("parts", len(parts), "must be 1 to 16")
	}
	all := &keys.All{Combination: &algo.Combination{}}
	where := map[string]int{}
	for i, p := range parts {
		if err := p.check(c); err != nil {
			return nil, err
		}
		l, id := p.limiter, p.limiter.id(p.key)
		if first, used := where[id.Key]; used {
			return nil, argument.Error(fmt.Sprintf("part %d", i+1), scripts.Quote(id.Key),
				fmt.Sprintf("is a key of part %d too: give them different prefixes", first+1))
		}
		if l.shadow != parts[0].limiter.shadow {
			return nil, argument.Error(fmt.Sprintf("part %d", i+1), scripts.Quote(id.Key),
				"differs from part 1 in WithShadow: ask a limit on trial in a call of its own")
		}
		where[id.Key] = i
		all.IDs = append(all.IDs, id)
		all.Add(id.Key, l.algorithm, l.options.Limit, p.cost)
	}
	return all, checkSlots(c, all.Keys)
}

// check refuses a part.
func (p Part) check(c *Client) error {
	switch {
	case p.limiter == nil:
		return argument.Error("part", "Part{}", "must be made by Limiter.Part")
	case p.cost < 1 || p.cost > MaxRate:
		return argument.Error("Part.Cost", p.cost, "must be 1 to 4294967295")
	case p.limiter.err != nil:
		return p.limiter.err
	case p.limiter.client != c:
		return argument.Error("part", scripts.Quote(p.limiter.id(p.key).Key), "must be made by the same Client")
	}
	return nil
}

// checkSlots refuses keys that one script cannot reach together.
func checkSlots(c *Client, keys []string) error {
	switch c.base.(type) {
	case *redis.ClusterClient, *redis.Ring:
	default:
		return nil
	}
	apart := false
	var slots []string
	for _, key := range keys {
		apart = apart || scripts.HashTag(key) != scripts.HashTag(keys[0])
		slots = append(slots, fmt.Sprintf("%s in slot %d", scripts.Quote(key), scripts.Slot(key)))
	}
	if !apart {
		return nil
	}
	return argument.Error("parts", strings.Join(slots, ", "), "must share one hash tag: see WithHashTag")
}

// identity identifies a combination by its parts, with limits and costs.
func identity(a *keys.All) string {
	var b []byte
	for i, p := range a.Parts {
		id := a.IDs[i]
		for _, n := range []int64{
			int64(id.Options.Algorithm), p.Cost,
			p.Limit.Rate, int64(p.Limit.Per), p.Limit.Burst, int64(len(id.Key)),
		} {
			b = append(strconv.AppendInt(b, n, 36), ' ')
		}
		b = append(b, id.Key...)
	}
	return string(b)
}
