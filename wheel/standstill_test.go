package wheel_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/wheel"
)

// daily returns a rule for a time of each day, as one writes it without a library.
func daily(hour int) wheel.ScheduleFunc {
	return func(prev time.Time) time.Time {
		next := time.Date(prev.Year(), prev.Month(), prev.Day(), hour, 0, 0, 0, prev.Location())
		if !next.After(prev) {
			next = time.Date(prev.Year(), prev.Month(), prev.Day()+1, hour, 0, 0, 0, prev.Location())
		}
		return next
	}
}

// A rule by time.Date may have no time on the day of a change of the clock, and then it stands still.
func TestSchedule_GoesOnAfterATimeThatAChangeOfTheClockSkips(t *testing.T) {
	monthly := func(prev time.Time) time.Time {
		next := time.Date(prev.Year(), prev.Month(), 1, 0, 0, 0, 0, prev.Location())
		if !next.After(prev) {
			next = time.Date(prev.Year(), prev.Month()+1, 1, 0, 0, 0, 0, prev.Location())
		}
		return next
	}
	monthlyByAddDate := func(prev time.Time) time.Time {
		next := time.Date(prev.Year(), prev.Month(), 1, 0, 0, 0, 0, prev.Location())
		if !next.After(prev) {
			next = next.AddDate(0, 1, 0)
		}
		return next
	}
	for _, c := range []struct {
		name, zone, from string
		rule             wheel.ScheduleFunc
		want             []string
		stoodStill       int
	}{
		{"a day", "America/Sao_Paulo", "2013-10-18T12:00:00", daily(0), []string{
			"2013-10-19T00:00:00", "2013-10-19T23:00:00", "2013-10-21T00:00:00", "2013-10-22T00:00:00",
		}, 1},
		{"a day, begun where it stands still", "America/Sao_Paulo", "2013-10-19T23:30:00", daily(0), []string{
			"2013-10-21T00:00:00", "2013-10-22T00:00:00",
		}, 1},
		{"a time of half an hour later, at which it does not stand still", "Australia/Lord_Howe", "2013-10-04T12:00:00", daily(2), []string{
			"2013-10-05T02:00:00", "2013-10-06T02:30:00", "2013-10-07T02:00:00",
		}, 0},
		{"a day without a change at this hour", "Europe/Berlin", "2013-03-30T12:00:00", daily(0), []string{
			"2013-03-31T00:00:00", "2013-04-01T00:00:00",
		}, 0},
		{"a month", "America/Asuncion", "2017-08-15T12:00:00", monthly, []string{
			"2017-09-01T00:00:00", "2017-09-30T23:00:00", "2017-11-01T00:00:00", "2017-12-01T00:00:00",
		}, 1},
		{"a month by AddDate, which stands still until the next one", "America/Asuncion", "2017-08-15T12:00:00", monthlyByAddDate, []string{
			"2017-09-01T00:00:00", "2017-09-30T23:00:00", "2017-10-30T23:00:00", "2017-12-01T00:00:00", "2018-01-01T00:00:00",
		}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			zone, err := time.LoadLocation(c.zone)
			require.NoError(t, err)
			inBubble(t, func(t *testing.T) {
				const layout = "2006-01-02T15:04:05"
				now, err := time.ParseInLocation(layout, c.from, zone)
				require.NoError(t, err)
				var out bytes.Buffer
				clock := shiftedClock{time.Until(now), zone}
				w := newWheel(t, wheel.WithClock(clock), wheel.WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
				var at []string
				_, err = w.Schedule(c.rule, func(time.Time) { at = append(at, clock.Now().Format(layout)) })
				require.NoError(t, err)
				last, err := time.ParseInLocation(layout, c.want[len(c.want)-1], zone)
				require.NoError(t, err)
				pass(last.Sub(now) + time.Hour)
				require.Equal(t, c.want, at)
				require.Equal(t, 1, w.Len(), "it goes on")
				require.Equal(t, c.stoodStill, strings.Count(out.String(), "level=WARN"), out.String())
				require.Equal(t, c.stoodStill, strings.Count(out.String(), "a schedule stood still"))
			})
		})
	}
}

// shiftedClock is the clock of a bubble at another time and place.
type shiftedClock struct {
	ahead time.Duration
	zone  *time.Location
}

func (c shiftedClock) Now() time.Time                         { return time.Now().Add(c.ahead).In(c.zone) }
func (c shiftedClock) After(d time.Duration) <-chan time.Time { return time.After(d) }
