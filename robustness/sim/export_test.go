package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/oracle"
	"github.com/cogwheel-go/cogwheel/robustness/check"
)

// TwoClocks returns a time with the readings of two clocks.
var TwoClocks = twoClocks

// Script is a script that a server executed at an instant, for process 1.
type Script struct {
	At    time.Duration
	Name  string
	Args  string // separated by spaces
	Reply []int64
}

func executions(scripts []Script) (all []execution) {
	for _, s := range scripts {
		d := &decision{now: s.At.Microseconds(), args: strings.Split(s.Args, " "), reply: s.Reply}
		all = append(all, execution{at: int64(s.At), link: 1, name: s.Name, ran: true, decision: d})
	}
	return all
}

// JudgeScripts returns what scripts granted and should not have.
func JudgeScripts(kind string, scripts ...Script) (wrong []string) {
	for _, f := range judgeExactly(kind, executions(scripts), nil) {
		wrong = append(wrong, f.Detail)
	}
	return wrong
}

// Grant is a request for one permit that was granted, under a limit of Rate per second.
type Grant struct {
	Called, Return time.Duration
	Rate           int64
}

// JudgeGrants returns which requests were granted but not charged.
func JudgeGrants(kind string, granted []Grant, scripts ...Script) (wrong []string) {
	var asks []*check.Ask
	for i, g := range granted {
		rate := oracle.Limit{Rate: g.Rate, Per: time.Second, Burst: g.Rate}
		asks = append(asks, &check.Ask{ID: uint64(i), N: 1, Limit: rate, Called: int64(g.Called), Return: int64(g.Return)})
	}
	charges, given := chargesOf(kind, executions(scripts), 1)
	for _, f := range judgeCharges(kind, asks, charges, given, keptFor, int64(time.Millisecond)) {
		wrong = append(wrong, fmt.Sprint(f.Detail))
	}
	return wrong
}
