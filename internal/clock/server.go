package clock

import "time"

// slew is the most by which the rates of the clocks may differ: one in 2000, or 500 ppm, as NTP changes the rate of a
// clock by no more (RFC 5905).
const slew = 2000

// Server tells the local time of instants of a server's clock, too late rather than too early. A script reads that
// clock when it begins, and its reply comes later, by a millisecond if the script does much. So the latest local time
// of the server's zero is what the quickest replies tell, as in the clock filter of NTP. The zero value has no reply
// yet. It is not safe for concurrent use.
//
// If the rates differ by more, or the clock was set back, or another server answers whose clock is behind, an instant
// may seem to be earlier, at most by the time that the last request took to the server.
type Server struct {
	zero time.Time // the latest local time at which the server's clock was 0, as of at
	at   time.Time // when the last reply came
}

// Read notes that the server's clock showed an instant between two local times.
func (s *Server) Read(instant time.Duration, sent, came time.Time) {
	zero := came.Add(-instant)
	if !s.at.IsZero() {
		known := s.zero.Add(came.Sub(s.at) / slew)
		if known.Before(zero) && !known.Before(sent.Add(-instant)) { // else it was set, or is that of another server
			zero = known
		}
	}
	s.zero, s.at = zero, came
}

// Local returns the local time of an instant.
func (s *Server) Local(instant time.Duration) time.Time { return s.zero.Add(instant) }
