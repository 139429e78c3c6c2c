package ratelimit

import (
	"crypto/rand"
	"encoding/binary"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// slidingLog is the algorithm of Redisson's RRateLimiter: each grant is an entry, which leaves after the
// interval. Each keyState has one.
type slidingLog struct {
	clientID  string
	perClient atomic.Bool // the scope, as far as it is known
}

// recount is the time between two counts of the whole log, in case a peer has charged permits without an entry.
const recount = time.Minute

// logKeys are the keys of a limiter.
func logKeys(name string) []string {
	return []string{name, scripts.SuffixName(name, "value"), scripts.SuffixName(name, "permits")}
}

// keys returns the limit, and the value and the log of this client or of all clients.
func (s *slidingLog) keys(name string, perClient bool) []string {
	if perClient {
		id := s.clientID
		return []string{name, scripts.SuffixName(name, "value:"+id), scripts.SuffixName(name, "permits:"+id)}
	}
	return logKeys(name)
}

func (*slidingLog) route(name string) string { return name }
func (*slidingLog) label(name string) string { return name }
func (s *slidingLog) setPerClient(on bool)   { s.perClient.Store(on) }

func (*slidingLog) traits() traits {
	return traits{entries: true, canGiveBack: true, keep: keepUnused}
}

func (s *slidingLog) follow(err error) bool {
	switch {
	case redis.HasErrorPrefix(err, "PERCLIENT"):
		s.perClient.Store(true)
	case redis.HasErrorPrefix(err, "OVERALL"):
		s.perClient.Store(false)
	default:
		return false
	}
	return true
}

// member packs an entry of the log as Redisson does from 3.17 on: the length of the id, the id, and n in 32 bits,
// low byte first. Bytes 3 to 6 of the id are n as well, where Redisson 3.13.3 to 3.16.3 reads it.
func member(id [16]byte, n int64) string {
	binary.LittleEndian.PutUint32(id[3:], uint32(n))
	b := append(make([]byte, 0, 21), byte(len(id)))
	return string(binary.LittleEndian.AppendUint32(append(b, id[:]...), uint32(n)))
}

// resized returns an entry with another number of permits, in the form that rate_log.lua makes.
func resized(entry string, n int64) string { return member([16]byte([]byte(entry[1:17])), n) }

// newMember returns an entry with 96 random bits in its id.
func newMember(n int64) string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return member(id, n)
}

func size(member string) int64 {
	return int64(binary.LittleEndian.Uint32([]byte(member[len(member)-4:])))
}

func (*slidingLog) script() *scripts.Script { return scripts.RateLog }

func (*slidingLog) limitOf(last snapshot) (algoLimit, bool) {
	s, ok := last.(*logSnapshot)
	if !ok {
		return algoLimit{}, false
	}
	return algoLimit{Rate: s.rate, Per: s.interval, Burst: s.rate}, true
}

func (s *slidingLog) encode(key string, a *ask) scripts.Call {
	a.members = a.members[:0]
	if a.debt > 0 {
		a.runs = append(a.runs[:0], equalRequests{n: a.debt, count: 1})
	}
	for _, r := range a.runs {
		for range r.count {
			if r.n > 0 {
				a.members = append(a.members, newMember(r.n))
			}
		}
	}
	a.perClient = s.perClient.Load()
	counted := "" // an unknown rate makes the script count the whole log
	if last := a.lastCount(); last != nil {
		counted = last.rateText
	}
	order := int64(-1)
	switch {
	case a.inOrder:
		order = a.coming
	case a.partial:
		order = -3
	case a.debt > 0:
		order = -4
	case len(a.runs)+len(a.back) == 0: // a probe
		order = -2
	}
	args := make([]any, 0, 5+2*len(a.back)+len(a.members))
	args = append(args, counted, order, a.ahead.Microseconds(), flag(a.perClient), len(a.back))
	for _, charged := range a.back {
		args = append(args, charged.entry, charged.stay)
	}
	for _, m := range a.members {
		args = append(args, m)
	}
	return scripts.RateLog.Call(s.keys(key, a.perClient), args...)
}

// lastCount returns the last known state of a log if its entries were counted recently, or nil.
func (a *ask) lastCount() *logSnapshot {
	last, ok := a.last.(*logSnapshot)
	if !ok || last.perClient != a.perClient || a.now-last.counted >= recount {
		return nil
	}
	return last
}

func (*slidingLog) decode(a *ask, reply []int64, at reading) (answer, error) {
	r := replyReader{reply: reply}
	s := readLog(&r)
	s.perClient = a.perClient
	got := answer{snapshot: s, takenBack: r.next(0, int64(len(a.back))) > 0}
	answers := make([]int64, len(a.members))
	for i := range answers {
		answers[i] = r.next(-exact, exact)
	}
	if a.partial || a.debt > 0 {
		n := r.next(1, a.runs[0].n)
		a.runs[0].n, a.members[0] = n, resized(a.members[0], n)
	}
	if err := r.end(); err != nil {
		return answer{}, err
	}
	if last := a.lastCount(); last != nil && last.rate == s.rate {
		s.counted = last.counted
	} else if len(a.members) > 0 { // a look writes nothing, so the next call counts too
		s.counted = at.got
	}
	left := s.left // here: what was left before
	for i, m := range a.members {
		if answers[i] >= 0 {
			left += size(m)
		}
	}
	members := a.members
	for _, r := range a.runs {
		granted := int64(0)
		for range r.count {
			got.decisions = append(got.decisions, decision{Limit: s.rate, Remaining: max(0, left), ResetAfter: s.reset})
			d := &got.decisions[len(got.decisions)-1]
			if r.n == 0 {
				d.Allowed = left > 0
				continue
			}
			switch delay := answers[0]; {
			case delay >= 0:
				granted, left = granted+1, left-r.n
				e := members[0]
				d.Allowed, d.Granted, d.Remaining, d.Entry = true, r.n, max(0, left), e
				if a.needsSpans() {
					ahead := micros(delay)
					got.spans = append(got.spans, span{n: r.n, from: at.got + ahead, until: at.sent + ahead, entry: e})
				}
			case delay == -1:
				d.Exceeds, got.exceeding = true, true
			default:
				d.RetryAfter = micros(-2 - delay)
				if !a.inOrder || len(s.denied) == 0 { // the script did not look at later requests
					s.denies(r.n, d.RetryAfter)
				}
			}
			members, answers = members[1:], answers[1:]
		}
		got.granted = append(got.granted, granted)
	}
	if a.debt > 0 {
		got.booked, got.spans = got.granted[0]*a.runs[0].n, nil
	}
	return got, nil
}

// fit: an entry serves a request for exactly as many permits.
func (*slidingLog) fit(spans []span, n int64, since time.Duration) fitting {
	if first := spans[0]; since > first.until || n != first.n {
		return fitting{drop: first.n}
	}
	return fitting{at: spans[0].from}
}

// skip leaves the used permits in the entry; waiters use entries as a whole.
func (*slidingLog) skip(s *span, k int64) { s.n, s.stay = s.n-k, s.stay+k }

// logSnapshot has the state of a log and its denied requests.
type logSnapshot struct {
	perClient  bool
	rate, left int64
	rateText   string
	interval   time.Duration
	reset      time.Duration
	counted    time.Duration // by the Client's clock
	denied     []denial
}

// readLog reads rate, interval, permits left and the time until the log is empty.
func readLog(r *replyReader) *logSnapshot {
	rate, interval := r.next(1, math.MaxInt64), r.next(1, math.MaxInt64)
	left, reset := r.next(-exact, exact), r.next(-exact, exact)
	return &logSnapshot{
		rate: rate, rateText: strconv.FormatInt(rate, 10), interval: millis(interval), left: left, reset: micros(reset),
		counted: math.MinInt64 / 2,
	}
}

type denial struct {
	n     int64
	delay time.Duration
}

// denies records a denial. A denial of more permits that does not last longer adds nothing.
func (s *logSnapshot) denies(n int64, delay time.Duration) {
	for _, d := range s.denied {
		if d.n <= n && d.delay >= delay {
			return
		}
	}
	s.denied = append(s.denied, denial{n, delay})
}

func (s *logSnapshot) cachedDenial(n int64, passed time.Duration) (decision, bool) {
	for _, d := range s.denied {
		if d.n <= n && n <= s.rate && passed < d.delay {
			return decision{
				Limit: s.rate, Remaining: max(0, min(s.left, d.n-1)),
				RetryAfter: d.delay - passed, ResetAfter: max(0, s.reset-passed),
			}, true
		}
	}
	return decision{}, false
}

func (s *logSnapshot) wait(total int64, passed time.Duration) time.Duration {
	var longest time.Duration
	for _, d := range s.denied {
		if d.n <= total {
			longest = max(longest, d.delay-passed)
		}
	}
	// Whatever is left and whatever leaves, each interval has at most the rate.
	if rounds := (total - max(0, s.left) - 1) / s.rate; total > s.left && rounds > 0 {
		longest = max(longest, times(rounds, s.interval)-passed)
	}
	return longest
}

// keep: the next script need not count the whole log, and LocalShare needs the limit.
func (s *logSnapshot) keep(now time.Duration, down bool) time.Duration {
	if down {
		return recount
	}
	return s.counted + recount - now
}

func (s *logSnapshot) state() decision {
	r, denied := s.cachedDenial(1, 0)
	if !denied {
		r = decision{Limit: s.rate, Remaining: max(0, s.left), ResetAfter: s.reset}
	}
	return r
}
