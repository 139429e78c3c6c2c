package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// The kinds of objects.
const (
	kindMutex         = "mutex"
	kindFair          = "fair mutex"
	kindRW            = "read/write mutex"
	kindString        = "string mutex"
	kindCounting      = "counting semaphore"
	kindSemaphore     = "semaphore"
	kindFairSem       = "fair semaphore"
	kindStoredLimiter = "stored limiter"
	kindGCRA          = "limiter"
	kindWindow        = "limiter of fixed windows"
	kindSliding       = "limiter of sliding windows"
	kindQueue         = "queue"
	kindOther         = "other" // none of this library
)

// millis is a time as JSON shows it: in milliseconds, -1 for never.
type millis int64

func millisOf(d time.Duration) millis {
	if d < 0 {
		return -1
	}
	return millis(d.Milliseconds())
}

func (m millis) String() string {
	if m < 0 {
		return "never"
	}
	d := time.Duration(m) * time.Millisecond
	if d >= time.Minute {
		d = d.Round(time.Second)
	}
	return short(d)
}

// short is the text of a time without units of 0 at its end: 1h instead of 1h0m0s.
func short(d time.Duration) string {
	text := d.String()
	if d%time.Minute == 0 && d > 0 {
		text = strings.TrimSuffix(text, "0s")
	}
	if d%time.Hour == 0 && d > 0 {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// object is what exists under a name. One of the states is set, unless the kind is other.
type object struct {
	Kind    string       `json:"kind"`
	Note    string       `json:"note,omitempty"`
	Lock    *lockState   `json:"lock,omitempty"`
	Permits *permitState `json:"permits,omitempty"`
	Limit   *limitState  `json:"limit,omitempty"`
	Queue   *queueState  `json:"queue,omitempty"`
}

type lockState struct {
	Held    bool     `json:"held"`
	Mode    string   `json:"mode,omitempty"` // read or write
	TTL     millis   `json:"ttl_ms"`         // until the last hold ends unless it is renewed
	Holders []holder `json:"holders"`
	Waiting []holder `json:"waiting,omitempty"` // of a fair mutex, in order
	Token   int64    `json:"token,omitempty"`

	// Subscribers are the processes in the line and the connections that listen for a release: one for each process
	// that waits, or has waited in the last seconds. A fair mutex has none.
	Subscribers *int64 `json:"subscribers,omitempty"`
}

type holder struct {
	ID       string  `json:"id"`
	Metadata string  `json:"metadata,omitempty"`
	TTL      *millis `json:"ttl_ms,omitempty"` // of a reader
}

type permitState struct {
	Set         bool     `json:"set"`
	Free        int64    `json:"free"`
	Held        *int64   `json:"held,omitempty"`    // nil for a counting semaphore, which does not know
	TTL         millis   `json:"ttl_ms"`            // until the semaphore expires
	Permits     []permit `json:"permits"`           // held ones, at most 1000
	Waiting     *int64   `json:"waiting,omitempty"` // processes in the line, of a fair semaphore
	Token       int64    `json:"token,omitempty"`
	Subscribers *int64   `json:"subscribers,omitempty"` // as of a lock
}

type permit struct {
	ID  string `json:"id"`
	TTL millis `json:"ttl_ms"`
}

type limitState struct {
	Key       string  `json:"key,omitempty"` // of a Limiter, in Redis
	Scope     string  `json:"scope,omitempty"`
	Rate      int64   `json:"rate,omitempty"`
	Per       string  `json:"per,omitempty"`
	Burst     int64   `json:"burst,omitempty"`
	KeepAlive *millis `json:"keep_alive_ms,omitempty"` // of a limiter
	Used      *int64  `json:"used,omitempty"`          // of the present window; of a sliding one by its estimate
	Remaining *int64  `json:"remaining,omitempty"`
	Retry     *millis `json:"retry_after_ms,omitempty"`
	Full      *millis `json:"full_after_ms,omitempty"` // until all permits are there again
}

// traces are what the keys of a name tell about the kinds of objects that exist.
type traces struct {
	kind                                 string // Redis' type of the key
	value                                string // of a string
	ttl                                  time.Duration
	mode, rate                           bool // fields of a hash
	queue, token, leases, fence, fairSem bool // other keys of the name
	tasks, paused                        bool
}

// find returns the objects that exist under a name. Only what reads from Redis is sent.
func (t *tool) find(ctx context.Context) ([]object, error) {
	seen, err := t.look(ctx)
	if err != nil {
		return nil, err
	}
	var found []object
	add := func(o object, err2 error) {
		if found = append(found, o); err == nil {
			err = err2
		}
	}
	switch {
	case seen.kind == "hash" && seen.mode:
		add(t.lock(ctx, kindRW))
	case seen.kind == "hash" && seen.rate:
		add(t.storedLimiter(ctx))
	case seen.queue:
		add(t.lock(ctx, kindFair))
	case seen.kind == "hash", seen.kind == "none" && seen.token:
		add(t.lock(ctx, kindMutex))
	case seen.kind == "none" && (seen.leases || seen.fence):
		add(t.semaphore(ctx, kindSemaphore, seen))
	case seen.kind == "string":
		switch kind := limiterKind(t.name, seen); kind {
		case kindGCRA, kindWindow, kindSliding:
			add(t.limiter(ctx, kind))
		case kindCounting:
			add(t.counting(ctx, seen))
		case kindSemaphore:
			add(t.semaphore(ctx, kindSemaphore, seen))
		case kindString:
			add(t.lock(ctx, kindString))
		default:
			add(object{Kind: kindOther, Note: "a string that is no number, perhaps the lock of another library"}, nil)
		}
	case seen.kind != "none":
		add(object{Kind: kindOther, Note: "a key of type " + seen.kind}, nil)
	}
	if seen.fairSem {
		add(t.semaphore(ctx, kindFairSem, seen))
	}
	if seen.tasks || seen.paused {
		add(t.queue(ctx))
	}
	return found, err
}

// look asks which keys of the name exist.
func (t *tool) look(ctx context.Context) (seen traces, err error) {
	exist := map[string]*bool{}
	if refused, ok := errors.AsType[*scripts.NameError](scripts.CheckName(t.name)); !ok {
		exist[scripts.FairLockKeys(t.name)[1]] = &seen.queue
		exist[scripts.LockFence(t.name)] = &seen.token
		exist[scripts.SuffixName(t.name, "timeout")] = &seen.leases
		exist[scripts.SuffixName(t.name, "fence")] = &seen.fence
		exist[scripts.SuffixName(t.name, "fair:permits")] = &seen.fairSem
		exist[scripts.DelayKey(t.name, "tasks")] = &seen.tasks
		exist[scripts.DelayKey(t.name, "paused")] = &seen.paused
	} else if _, ok := parseLimiter(t.name); !ok { // keys of a Limiter have no others
		return seen, usageError(fmt.Sprintf("%s can be no name: %s", scripts.Quote(t.name), refused.Reason))
	}
	// These calls share no pipeline: go-redis must not repeat one; see scripts.RunBatch.
	if seen.kind, err = t.rdb.Type(ctx, t.name).Result(); err != nil {
		return seen, err
	}
	if seen.ttl, err = t.rdb.PTTL(ctx, t.name).Result(); err != nil {
		return seen, err
	}
	for key, exists := range exist {
		n, err := t.rdb.Exists(ctx, key).Result()
		if err != nil {
			return seen, err
		}
		*exists = n > 0
	}
	switch seen.kind {
	case "hash":
		fields, err := t.rdb.HMGet(ctx, t.name, "mode", "rate").Result()
		if err != nil {
			return seen, err
		}
		seen.mode, seen.rate = fields[0] != nil, fields[1] != nil
	case "string":
		if seen.value, err = t.rdb.Get(ctx, t.name).Result(); errors.Is(err, redis.Nil) { // it has expired since
			seen.kind, err = "none", nil
		}
	}
	return seen, err
}

var (
	limiterKey   = regexp.MustCompile(`(?s)^([^{}]+):\{([^{}]*)\}(?::(window|sliding))?$`)
	taggedKey    = regexp.MustCompile(`(?s)^([^{}]+):\{([^{}]*)\}:(key|window|sliding):([^{}]*)$`)
	gcraState    = regexp.MustCompile(`^(\d+)(:\d+){0,3}(@\d+:\d+[:;,\d]*)?$`)
	windowState  = regexp.MustCompile(`^(\d+)(:\d+(@\d+)?)?$`)
	slidingState = regexp.MustCompile(`^\d+:(\d{1,15}):(\d{1,15}):(\d{1,15})(?:@\d+:(\d{1,15}))?$`)
)

// limiterName is the key of a Limiter, taken apart. Its parts are escaped as they stand in Redis.
type limiterName struct {
	prefix, tag, key string
	algorithm        ratelimit.Algorithm
}

// algorithms maps the word in the key of a Limiter to its algorithm. A key without such a word is one of GCRA.
var algorithms = map[string]ratelimit.Algorithm{"window": ratelimit.FixedWindow, "sliding": ratelimit.SlidingWindow}

// limiterKinds are the kinds of objects by their algorithms.
var limiterKinds = [...]string{
	ratelimit.GCRA: kindGCRA, ratelimit.FixedWindow: kindWindow, ratelimit.SlidingWindow: kindSliding,
}

// parseLimiter takes the key of a Limiter apart, if the name has the form of one.
func parseLimiter(name string) (k limiterName, ok bool) {
	if parts := taggedKey.FindStringSubmatch(name); parts != nil {
		return limiterName{prefix: parts[1], tag: parts[2], algorithm: algorithms[parts[3]], key: parts[4]}, true
	}
	if parts := limiterKey.FindStringSubmatch(name); parts != nil {
		return limiterName{prefix: parts[1], key: parts[2], algorithm: algorithms[parts[3]]}, true
	}
	return k, false
}

// sinceThen is an instant in microseconds that lies before all of GCRA's states and above all numbers of permits.
const sinceThen = 1e15

// limiterKind tells apart what is in Redis as a string: the states of Limiters, the numbers of permits, and locks.
func limiterKind(name string, seen traces) string {
	_, err := strconv.ParseInt(seen.value, 10, 64)
	limiter, ok := parseLimiter(name)
	if ok && seen.ttl > 0 && isState(limiter.algorithm, seen) {
		return limiterKinds[limiter.algorithm]
	}
	switch {
	case err != nil && scripts.OfHold(strings.TrimPrefix(seen.value, "next ")):
		return kindString
	case err != nil:
		return kindOther
	case seen.leases || seen.fence:
		return kindSemaphore
	}
	return kindCounting
}

// isState reports whether a string is the state of a Limiter with this algorithm.
func isState(a ratelimit.Algorithm, seen traces) bool {
	switch a {
	case ratelimit.FixedWindow:
		return windowState.MatchString(seen.value) && !seen.leases
	case ratelimit.SlidingWindow:
		return slidingState.MatchString(seen.value)
	}
	us, _, _ := strings.Cut(seen.value, ":")
	instant, _ := strconv.ParseInt(us, 10, 64)
	return gcraState.MatchString(seen.value) && instant >= sinceThen
}

// unescape returns the key of a Limiter as the service passes it, and false if Redis has only its hash.
func unescape(key string) (string, bool) {
	if strings.Contains(key, "%sha256:") {
		return "", false
	}
	return strings.NewReplacer("%7B", "{", "%7D", "}", "%25", "%").Replace(key), true
}

var limitFlag = regexp.MustCompile(`^(\d+)/(.+)$`)

// parseRate reads N/PERIOD.
func parseRate(text string) (n int64, per time.Duration, err error) {
	wrong := usageError(fmt.Sprintf("--rate %q is no N/PERIOD, such as 10/s", text))
	parts := limitFlag.FindStringSubmatch(text)
	if parts == nil {
		return 0, 0, wrong
	}
	period := parts[2]
	if !strings.ContainsRune("0123456789.", rune(period[0])) { // a unit alone
		period = "1" + period
	}
	n, err = strconv.ParseInt(parts[1], 10, 64)
	per, err2 := time.ParseDuration(period)
	if err != nil || err2 != nil {
		return 0, 0, wrong
	}
	return n, per, nil
}
