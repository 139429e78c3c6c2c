package httplimit

import (
	"cmp"
	"fmt"
	"math/big"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// policyField is the name of a limit in fields, and the parameters of its member of the field RateLimit-Policy; "" if
// the limit is not known.
type policyField struct{ name, parameters string }

const (
	policyName = "RateLimit-Policy"
	countsName = "RateLimit"
)

// tell sets the fields of a decision, or those that do not depend on used permits if there is none.
func (m *middleware) tell(w http.ResponseWriter, s subject, result *ratelimit.Result) {
	h := w.Header()
	if result != nil && result.Shadow { // a client must not obey a limit on trial
		if result.WouldDeny && m.fields != NoFields {
			h.Set("RateLimit-Would-Deny", "true")
		}
		return
	}
	counted := result != nil && known(*result)
	if m.fields&RateLimitFields != 0 {
		var counts []ratelimit.Result
		switch {
		case !counted:
		case result.Parts != nil:
			counts = result.Parts
		case len(s.policies) == 1:
			counts = []ratelimit.Result{*result}
		}
		for i, p := range s.policies {
			name := uniqueName(h, p.name)
			if i < len(counts) && known(counts[i]) {
				addMember(h, countsName,
					fmt.Sprintf("%s;r=%d;t=%d", name, counts[i].Remaining, seconds(counts[i].ResetAfter)))
			}
			if p.parameters != "" {
				addMember(h, policyName, name+p.parameters)
			}
		}
	}
	if counted && m.fields&XRateLimitFields != 0 {
		tellCounts(h, *result)
	}
}

// uniqueName returns a name as a string of RFC 9651. A handler around this one may have used the name.
func uniqueName(h http.Header, name string) string {
	used := strings.Join(h.Values(policyName), ",") + strings.Join(h.Values(countsName), ",")
	text := quote(name)
	for i := 2; strings.Contains(used, text+";"); i++ {
		text = quote(name + "-" + strconv.Itoa(i))
	}
	return text
}

// addMember adds a member to a field that is a list. The list stays one line, because many clients read no other.
func addMember(h http.Header, field, member string) {
	h.Set(field, strings.Join(append(h.Values(field), member), ", "))
}

// known reports whether a result has the permits left.
func known(r ratelimit.Result) bool {
	switch r.Source {
	case ratelimit.SourceDegraded:
		return false
	case ratelimit.SourceLocal:
		return r.Limit > 0 // else there was no decision
	}
	return true
}

// tellCounts sets the X-RateLimit fields, unless a handler around this one has fewer requests left.
func tellCounts(h http.Header, r ratelimit.Result) {
	if before, err := strconv.ParseInt(h.Get("X-RateLimit-Remaining"), 10, 64); err == nil &&
		before < r.Remaining && r.Allowed {
		return
	}
	h.Set("X-RateLimit-Limit", strconv.FormatInt(r.Limit, 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(r.Remaining, 10))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(seconds(r.ResetAfter), 10))
}

// parameters returns those of a member of RateLimit-Policy: the quota, and the window unless it is a fraction of
// seconds.
func parameters(l ratelimit.Limit) string {
	burst := cmp.Or(l.Burst, l.Rate)
	if l.Rate < 1 || burst < 1 {
		return ""
	}
	text := fmt.Sprintf(";q=%d", burst)
	// Per * burst may be beyond 64 bits.
	perSecond := new(big.Int).Mul(big.NewInt(l.Rate), big.NewInt(int64(time.Second)))
	refill := new(big.Rat).SetFrac(big.NewInt(int64(l.Per)), perSecond)
	if refill.Mul(refill, new(big.Rat).SetInt64(burst)); refill.IsInt() && refill.Sign() > 0 {
		text += ";w=" + refill.Num().String()
	}
	return text
}

// seconds rounds up, so that a client that waits this long does not come too early.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 { // d plus a second may overflow
		s++
	}
	return s
}

// quote returns a string of RFC 9651.
func quote(s string) string {
	out := []byte{'"'}
	for _, c := range []byte(s) {
		if c == '"' || c == '\\' {
			out = append(out, '\\')
		}
		out = append(out, c)
	}
	return string(append(out, '"'))
}
