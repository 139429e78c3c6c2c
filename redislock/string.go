package redislock

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// stringKind is the lock of most other libraries: a string with the id of the holder, set by SET NX PX and compared
// before it is renewed or removed. Their releases tell nobody, so a waiter polls while they hold it; see line.Refusal.
var stringKind = &kind{
	name: "Mutex with WithStringKey",
	is:   KindString,
	acquire: func(r *request) scripts.Call {
		keys, args := []string{r.name()}, []any{r.id, r.mutex.config.millis}
		if r.fenced() {
			keys, args = append(keys, scripts.LockFence(r.name())), append(args, r.fenceMillis(), r.handoffsWanted)
		}
		return scripts.StringAcquire.Call(keys, r.inLine(args, 4)...)
	},
	release: func(c *claim) scripts.Call {
		return c.returningTokens(scripts.StringRelease, c.id, c.verb(), scripts.LockChannel(c.name()))
	},
	force: func(c *claim) scripts.Call {
		channel := scripts.LockChannel(c.name())
		return scripts.StringForce.Call([]string{c.name()}, c.verb(), channel, scripts.ClientChannel(""))
	},
	channel:   func(name, _ string) string { return scripts.LockChannel(name) },
	exclusive: true,
	lines:     true,
	leaveLine: func(name, waiter string, verb any, channel string) scripts.Call {
		return scripts.StringLeave.Call([]string{name}, waiter, verb, channel)
	},
	renew: scripts.StringRenew,
	view:  view{read: readString},
}

// keptMark precedes the waiter for whom the key of a free string lock is kept.
const keptMark = "next "

// readString reads the holder of a string lock, of whatever library.
func readString(pipe redis.Pipeliner, name string) (note func(*State)) {
	value := pipe.Get(context.Background(), name)
	return func(s *State) {
		id := value.Val()
		waiter, kept := strings.CutPrefix(id, keptMark)
		if value.Err() != nil || kept && scripts.OfHold(waiter) {
			return
		}
		h := Holder{ID: id}
		if scripts.OfHold(id) {
			h.Metadata = metadataOf(id)
		}
		s.Holders = []Holder{h}
	}
}
