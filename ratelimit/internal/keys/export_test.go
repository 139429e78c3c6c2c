package keys

import "context"

// Interrupt puts a job in flight, one caller for each context, calls before, and interrupts the job. It returns the
// errors of the callers that got one, by their numbers.
func (s *State) Interrupt(before func(), callers ...context.Context) (told map[int]error, err error) {
	s.mu.Lock()
	var j *Job
	all := make([]*call, len(callers))
	for i, ctx := range callers {
		all[i] = &call{n: 1, values: ctx, done: make(chan struct{}, 1)}
		made, err := s.joinLocked(all[i])
		if err != nil {
			s.mu.Unlock()
			return nil, err
		}
		if made != nil {
			j = made
		}
	}
	s.queued = nil
	j.takeLocked(maxBatch)
	j.stage = sent
	s.mu.Unlock()
	before()
	j.interrupted()
	told = map[int]error{}
	for i, c := range all {
		if len(c.done) > 0 {
			told[i] = c.err
		}
	}
	return told, nil
}
