package sim_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/robustness/sim"
)

const ms = time.Millisecond

// A member of a log: its last four bytes are one permit.
const one = "entry\x01\x00\x00\x00"

const three = "entry\x03\x00\x00\x00"

// The replays find scripts that grant what they should not, and no others.
func TestJudgeScripts_FindsWhatIsGrantedTooEarly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, kind string
		wrong      bool
		scripts    []sim.Script
	}{
		{"a window that is full", "window limit", true, []sim.Script{
			{0, "rate_window", "2 1000 0 1 1 2", []int64{0, 0, 1000, 2}},
			{500 * ms, "rate_window", "2 1000 0 1 1 1", []int64{2, 0, 500, 1}},
		}},
		{"a waiter that opens the next window", "window limit", false, []sim.Script{
			{0, "rate_window", "2 1000 0 1 1 2", []int64{0, 0, 1000, 2}},
			{980 * ms, "rate_window", "2 1000 20 1 1 1", []int64{2, 0, 20, 1}},
			{1000 * ms, "rate_window", "2 1000 0 1 1 1", []int64{1, 0, 1000, 1}},
		}},
		{"a window that has not begun", "window limit", true, []sim.Script{
			{0, "rate_window", "2 1000 0 1 1 2", []int64{0, 0, 1000, 2}},
			{980 * ms, "rate_window", "2 1000 20 1 1 1", []int64{2, 0, 20, 1}},
			{985 * ms, "rate_window", "2 1000 0 1 1 1", []int64{1, 15, 1015, 1}},
		}},
		{"a window that lasts a millisecond longer than it was told", "window limit", false, []sim.Script{
			{0, "rate_window", "3 1000 0 1 1 2", []int64{0, 0, 1000, 2}},
			{1000 * ms, "rate_window", "3 1000 0 1 1 1", []int64{2, 0, 1, 1}},
			{1500 * ms, "rate_window", "3 1000 0 1 1 2", []int64{0, 0, 1000, 2}},
			{1900 * ms, "rate_window", "3 1000 0 1 1 1", []int64{2, 0, 600, 1}},
		}},
		{"a window that lasts a millisecond less than it was told", "window limit", false, []sim.Script{
			{0, "rate_window", "3 1000 0 1 1 1", []int64{0, 0, 1000, 1}},
			{999 * ms, "rate_window", "3 1000 0 1 1 2", []int64{0, 0, 1000, 2}},
			{1100 * ms, "rate_window", "3 1000 0 1 1 1", []int64{2, 0, 899, 1}},
			{2010 * ms, "rate_window", "3 1000 0 1 1 3", []int64{0, 0, 1000, 3}},
		}},
		{"another limit for the key", "window limit", false, []sim.Script{
			{0, "rate_window", "2 1000 0 1 1 2", []int64{0, 0, 1000, 2}},
			{500 * ms, "rate_window", "3 1000 0 1 1 1", []int64{2, 0, 500, 1}},
		}},
		{"after a reset", "window limit", false, []sim.Script{
			{0, "rate_window", "2 1000 0 1 1 2", []int64{0, 0, 1000, 2}},
			{At: 400 * ms, Name: "del"},
			{500 * ms, "rate_window", "2 1000 0 1 1 1", []int64{0, 0, 1000, 1}},
		}},
		{"a sliding window that is full", "sliding limit", true, []sim.Script{
			{500 * ms, "rate_sliding", "4 1000 1 1 4", []int64{0, 0, 1000, 500, 4}},
			{999 * ms, "rate_sliding", "4 1000 1 1 1", []int64{0, 4, 1000, 999, 1}},
		}},
		{"a sliding window before the share of the last one has fallen", "sliding limit", true, []sim.Script{
			{500 * ms, "rate_sliding", "4 1000 1 1 4", []int64{0, 0, 1000, 500, 4}},
			{1250 * ms, "rate_sliding", "4 1000 1 1 2", []int64{4, 0, 1000, 250, 2}},
		}},
		{"a sliding window whose last one has lost a share", "sliding limit", false, []sim.Script{
			{500 * ms, "rate_sliding", "4 1000 1 1 4", []int64{0, 0, 1000, 500, 4}},
			{1250 * ms, "rate_sliding", "4 1000 1 1 1", []int64{4, 0, 1000, 250, 1}},
			{1500 * ms, "rate_sliding", "4 1000 1 1 1", []int64{4, 1, 1000, 500, 1}},
			{2500 * ms, "rate_sliding", "4 1000 1 3 1", []int64{2, 0, 1000, 500, 1}},
		}},
		{"a bucket that is empty", "GCRA limit", true, []sim.Script{
			{0, "rate_gcra", "1 200000 0 1 1 100000 0 2", []int64{0, 200000, 0, 0, 2}},
			{50 * ms, "rate_gcra", "1 200000 0 1 1 100000 0 1", []int64{50000, 300000, 0, 0, 1}},
		}},
		{"a bucket that has filled", "GCRA limit", false, []sim.Script{
			{0, "rate_gcra", "1 200000 0 1 1 100000 0 2", []int64{0, 200000, 0, 0, 2}},
			{100 * ms, "rate_gcra", "1 200000 0 1 1 100000 0 1", []int64{100000, 300000, 0, 0, 1}},
		}},
		{"a log that is full", "stored limit", true, []sim.Script{
			{0, "rate_log", "x -1 0 0 0 1" + one, []int64{1, 1000, 0, 0, 0, 0}},
			{900 * ms, "rate_log", "x -1 0 0 0 2" + one, []int64{1, 1000, 0, 0, 0, 0}},
		}},
		{"a log whose entry has left, was repeated, or taken out", "stored limit", false, []sim.Script{
			{0, "rate_log", "x -1 0 0 0 1" + one, []int64{1, 1000, 0, 0, 0, 0}},
			{500 * ms, "rate_log", "x -1 0 0 0 1" + one, []int64{1, 1000, 0, 0, 0, 0}},
			{1100 * ms, "rate_log", "x -1 0 0 0 2" + one, []int64{1, 1000, 0, 0, 0, 0}},
			{1200 * ms, "rate_log", "x -1 0 0 1 2" + one + " 0 3" + one, []int64{1, 1000, 0, 0, 1, 0}},
		}},
		{"a window, and what was given back to it", "window limit", false, []sim.Script{
			{0, "rate_window", "4 1000 0 1 4 1 2", []int64{0, 0, 1000, 1, 77}},
			{100 * ms, "rate_window", "4 1000 0 0 0 1 77 3", []int64{1, 0, 900, 3}},
			{200 * ms, "rate_window", "4 1000 0 1 3 1", []int64{1, 0, 800, 1}},
		}},
		{"a window, and more than was given back to it", "window limit", true, []sim.Script{
			{0, "rate_window", "4 1000 0 1 4 1 2", []int64{0, 0, 1000, 1, 77}},
			{100 * ms, "rate_window", "4 1000 0 0 0 1 77 3", []int64{0, 0, 900, 3}},
			{200 * ms, "rate_window", "4 1000 0 1 4 1", []int64{0, 0, 800, 1}},
		}},
		{"a debt of the next window", "window limit", false, []sim.Script{
			{0, "rate_window", "4 1000 0 1 1 1 2", []int64{0, 0, 1000, 1, 77}},
			{100 * ms, "rate_window", "4 1000 0 0 0 0 5 4", []int64{2, 900, 1900, 5}},
			{1010 * ms, "rate_window", "4 1000 0 1 2 1", []int64{2, 0, 990, 1}},
		}},
		{"a debt that the next window forgets", "window limit", true, []sim.Script{
			{0, "rate_window", "4 1000 0 1 1 1 2", []int64{0, 0, 1000, 1, 77}},
			{100 * ms, "rate_window", "4 1000 0 0 0 0 5 4", []int64{4, 0, 900, 5}},
			{1010 * ms, "rate_window", "4 1000 0 1 3 1", []int64{0, 0, 990, 1}},
		}},
		{"a sliding window, and what was given back to it", "sliding limit", false, []sim.Script{
			{500 * ms, "rate_sliding", "4 1000 1 4 1 2", []int64{0, 0, 1000, 500, 1, 500000, 0}},
			{600 * ms, "rate_sliding", "4 1000 0 0 1 500000 0 3", []int64{0, 1, 1000, 600, 3}},
			{700 * ms, "rate_sliding", "4 1000 1 3 1", []int64{0, 1, 1000, 700, 1}},
		}},
		{"a sliding window, and more than was given back to it", "sliding limit", true, []sim.Script{
			{500 * ms, "rate_sliding", "4 1000 1 4 1 2", []int64{0, 0, 1000, 500, 1, 500000, 0}},
			{600 * ms, "rate_sliding", "4 1000 0 0 1 500000 0 3", []int64{0, 0, 1000, 600, 3}},
			{700 * ms, "rate_sliding", "4 1000 1 4 1", []int64{0, 0, 1000, 700, 1}},
		}},
		{"a debt of the next sliding window", "sliding limit", false, []sim.Script{
			{500 * ms, "rate_sliding", "4 1000 1 1 1 2", []int64{0, 0, 1000, 500, 1, 500000, 0}},
			{600 * ms, "rate_sliding", "4 1000 0 0 0 5 4", []int64{0, 6, 1000, 600, 5}},
			{2000 * ms, "rate_sliding", "4 1000 1 2 1", []int64{2, 0, 1000, 0, 1}},
		}},
		{"a debt that the next sliding window forgets", "sliding limit", true, []sim.Script{
			{500 * ms, "rate_sliding", "4 1000 1 1 1 2", []int64{0, 0, 1000, 500, 1, 500000, 0}},
			{600 * ms, "rate_sliding", "4 1000 0 0 0 5 4", []int64{0, 6, 1000, 600, 5}},
			{1600 * ms, "rate_sliding", "4 1000 1 1 1", []int64{4, 0, 1000, 600, 1}},
		}},
		{"a bucket, and what was given back to it", "GCRA limit", false, []sim.Script{
			{0, "rate_gcra", "1 200000 0 0 1 200000 0 1 60000000 0 0 60000000 0", []int64{0, 200000, 0, 0, 1, 5, 0, 0, 200000, 0, 1}},
			{10 * ms, "rate_gcra", "1 200000 0 0 0  0 1 5 0 200000 0 100000 0 0", []int64{10000, 100000, 0, 100000}},
			{20 * ms, "rate_gcra", "1 200000 0 0 1 100000 0 1", []int64{20000, 200000, 0, 0, 1}},
		}},
		{"a bucket, and more than was given back to it", "GCRA limit", true, []sim.Script{
			{0, "rate_gcra", "1 200000 0 0 1 200000 0 1 60000000 0 0 60000000 0", []int64{0, 200000, 0, 0, 1, 5, 0, 0, 200000, 0, 1}},
			{10 * ms, "rate_gcra", "1 200000 0 0 0  0 1 5 0 200000 0 100000 0 0", []int64{10000, 10000, 0, 200000}},
			{20 * ms, "rate_gcra", "1 200000 0 0 1 100000 0 2", []int64{20000, 210000, 0, 0, 2}},
		}},
		{"a bucket, before a reservation that waits for what another gave back", "GCRA limit", true, []sim.Script{
			{0, "rate_gcra", "1 200000 0 0 1 200000 0 1 60000000 0 0 60000000 0", []int64{0, 200000, 0, 0, 1, 5, 0, 0, 200000, 0, 1}},
			{0, "rate_gcra", "1 200000 0 0 1 200000 0 1 60000000 0 0 60000000 0", []int64{0, 400000, 0, 0, 1, 5, 0, 0, 400000, 0, 1}},
			{100 * ms, "rate_gcra", "1 200000 0 0 0  0 1 5 0 200000 0 200000 0 0", []int64{100000, 200000, 0, 200000}},
			{190 * ms, "rate_gcra", "1 200000 0 0 1 100000 0 1", []int64{190000, 300000, 0, 0, 1}},
		}},
		{"a bucket in debt to which reservations were given back, the last one first", "GCRA limit", false, []sim.Script{
			{0, "rate_gcra", "1 200000 0 0 1 200000 0 1 60000000 0 0 60000000 0", []int64{0, 200000, 0, 0, 1, 5, 0, 0, 200000, 0, 1}},
			{0, "rate_gcra", "1 200000 0 0 1 200000 0 1 60000000 0 0 60000000 0", []int64{0, 400000, 0, 0, 1, 5, 0, 0, 400000, 0, 1}},
			{0, "rate_gcra", "1 200000 0 0 1 200000 0 1 60000000 0 0 60000000 0", []int64{0, 600000, 0, 0, 1, 5, 0, 0, 600000, 0, 1}},
			{10 * ms, "rate_gcra", "1 200000 0 0 0  0 1 5 0 600000 0 200000 0 1", []int64{10000, 400000, 0, 200000}},
			{10 * ms, "rate_gcra", "1 200000 0 0 0  0 1 5 0 400000 0 200000 0 1", []int64{10000, 200000, 0, 200000}},
			{30 * ms, "rate_gcra", "1 200000 0 0 0  0 0 100000 0 0", []int64{30000, 230001, 0, 30001}},
		}},
		{"a bucket in debt", "GCRA limit", true, []sim.Script{
			{0, "rate_gcra", "1 200000 0 0 1 200000 0 1 60000000 0 0 60000000 0", []int64{0, 200000, 0, 0, 1, 5, 0, 0, 200000, 0, 1}},
			{10 * ms, "rate_gcra", "1 200000 0 0 0  0 0 200000 0 200000", []int64{10000, 400000, 0, 200000}},
			{200 * ms, "rate_gcra", "1 200000 0 0 1 100000 0 1", []int64{200000, 300000, 0, 0, 1}},
		}},
		{"a log, and what was given back to it", "stored limit", false, []sim.Script{
			{0, "rate_log", "x -1 0 0 0 1" + three, []int64{3, 1000, 0, 0, 0, 0}},
			{100 * ms, "rate_log", "x -1 0 0 1 1" + three + " 1", []int64{3, 1000, 2, 0, 1}},
			{200 * ms, "rate_log", "x -1 0 0 0 2" + one + " 3" + one, []int64{3, 1000, 0, 0, 0, 0, 0}},
		}},
		{"a log, and more than was given back to it", "stored limit", true, []sim.Script{
			{0, "rate_log", "x -1 0 0 0 1" + three, []int64{3, 1000, 0, 0, 0, 0}},
			{100 * ms, "rate_log", "x -1 0 0 1 1" + three + " 1", []int64{3, 1000, 3, 0, 1}},
			{200 * ms, "rate_log", "x -1 0 0 0 2" + three, []int64{3, 1000, 0, 0, 0, 0}},
		}},
		{"a log in debt", "stored limit", true, []sim.Script{
			{0, "rate_log", "x -4 0 0 0 1" + three, []int64{2, 1000, -1, 0, 0, 0, 3}},
			{100 * ms, "rate_log", "x -1 0 0 0 2" + one, []int64{2, 1000, 1, 0, 0, 0}},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			found := sim.JudgeScripts(c.kind, c.scripts...)
			require.Equal(t, c.wrong, len(found) > 0, found)
		})
	}
}

// An entry can be taken out of a log once. A second call for it does nothing.
func TestJudgeGrants_CountsAnEntryThatIsTakenOutTwiceOnce(t *testing.T) {
	t.Parallel()
	entered := sim.Script{At: 0, Name: "rate_log", Args: "x -1 0 0 0 1" + three, Reply: []int64{3, 1000, 0, 0, 0, 0}}
	takesOut := func(staying string) sim.Script {
		return sim.Script{At: 100 * ms, Name: "rate_log", Args: "x -1 0 0 1 1" + three + " " + staying, Reply: []int64{3, 1000, 2, 0, 1}}
	}
	require.Empty(t, sim.JudgeGrants("stored limit", nil, entered, takesOut("0"), takesOut("0")))
	require.Len(t, sim.JudgeGrants("stored limit", nil, entered, takesOut("0"), takesOut("1")), 1, "5 of 3 permits")
	require.Len(t, sim.JudgeGrants("stored limit", nil, takesOut("0")), 1, "it was not entered")
}

// Two charges and two requests under different limits: one charge may pay for either request, the other for one only.
// Both requests are paid, whichever returns first.
func TestJudgeGrants_SharesCharges(t *testing.T) {
	t.Parallel()
	charged := []sim.Script{
		{At: 100 * ms, Name: "rate_gcra", Args: "1 1000000 0 1 1 200000 0 1", Reply: []int64{100000, 300000, 0, 0, 1}},
		{At: 101 * ms, Name: "rate_gcra", Args: "1 1000000 0 1 1 100000 0 1", Reply: []int64{101000, 400000, 0, 0, 1}},
	}
	both := []sim.Grant{
		{Called: 90 * ms, Return: 110 * ms, Rate: 10},
		{Called: 90 * ms, Return: 111 * ms, Rate: 5},
	}
	for _, c := range []struct {
		name   string
		grants []sim.Grant
		wrong  int
	}{
		{"the smaller returns first", both, 0},
		{"the larger returns first", []sim.Grant{both[1], {Called: 90 * ms, Return: 112 * ms, Rate: 10}}, 0},
		{"one too many", append(both[:2:2], sim.Grant{Called: 90 * ms, Return: 112 * ms, Rate: 5}), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			found := sim.JudgeGrants("GCRA limit", c.grants, charged...)
			require.Len(t, found, c.wrong, found)
		})
	}
}

// A process that grants more than its scripts charged, or before it may be used, or long after, is found.
func TestJudgeGrants_FindsWhatIsNotCharged(t *testing.T) {
	t.Parallel()
	charges := map[string]sim.Script{
		"window limit":  {At: 100 * ms, Name: "rate_window", Args: "10 1000 20 1 1 2", Reply: []int64{0, 0, 1000, 2}},
		"sliding limit": {At: 100 * ms, Name: "rate_sliding", Args: "10 1000 1 1 2", Reply: []int64{0, 0, 1000, 100, 2}},
		"GCRA limit":    {At: 100 * ms, Name: "rate_gcra", Args: "1 1000000 0 1 1 100000 0 2", Reply: []int64{100000, 300000, 0, 0, 2}},
		"stored limit":  {At: 100 * ms, Name: "rate_log", Args: "x -1 0 0 0 1" + one + " 2" + one, Reply: []int64{10, 1000, 0, 0, 0, 0, 0}},
	}
	for kind, script := range charges {
		for name, c := range map[string]struct {
			granted []sim.Grant
			wrong   int
		}{
			"as much as was charged":         {[]sim.Grant{{90 * ms, 110 * ms, 10}, {95 * ms, 111 * ms, 10}}, 0},
			"more than was charged":          {[]sim.Grant{{90 * ms, 110 * ms, 10}, {95 * ms, 111 * ms, 10}, {96 * ms, 112 * ms, 10}}, 1},
			"before it was charged":          {[]sim.Grant{{10 * ms, 50 * ms, 10}}, 1},
			"that was charged long before":   {[]sim.Grant{{5000 * ms, 5001 * ms, 10}}, 1},
			"that was charged for who leave": {[]sim.Grant{{600 * ms, 601 * ms, 10}}, 0},
		} {
			t.Run(kind+": "+name, func(t *testing.T) {
				t.Parallel()
				found := sim.JudgeGrants(kind, c.granted, script)
				require.Len(t, found, c.wrong, found)
			})
		}
	}
}
