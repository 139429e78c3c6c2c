package redislock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

const (
	// firstRegain and longestRegain bound the pause before a missing part is asked for. The pause doubles with each
	// attempt, up to a sixth of the lease, so a part is back before the next server goes down, a lease later.
	firstRegain   = 250 * time.Millisecond
	longestRegain = 30 * time.Second
)

// errForced means that a part of a hold was freed by force, so it must not be taken again.
var errForced = errors.New("redislock: freed by force")

// vacancy is a server without its part of a Quorum's hold: it has lost the part, or did not grant it. While the
// hold lasts, the vacancy asks for the part, and waits on the wheel in between.
//
// Ground rules: an attempt is an acquisition with a new id, so neither a late copy of it nor the release of an
// earlier part affects another attempt. Its grant counts from its own request, and only if the hold has not ended
// and has a valid majority at that moment; otherwise the grant is released. While another holds the name on the
// server, attempts fail. A part that ForceUnlock has freed stays free: ForceUnlock first marks the hold on the
// server, and the script of an attempt reads the mark.
type vacancy struct {
	round  *quorumRound // that won the hold
	server int
	pause  time.Duration
	timer  wheel.Timer // ends the wait; guarded by the mu of the hold
}

// regain asks for the part of a server until the server grants it or the hold ends.
func (r *quorumRound) regain(server int) {
	config := r.mutex.parts[server].config
	if config.renew { // else the hold ends with its first lease
		longest := min(config.lease/6, longestRegain)
		v := &vacancy{round: r, server: server, pause: min(firstRegain, longest)}
		v.wait()
	}
}

// partLost asks for a part that its server has lost. A part that ended for another reason stays lost.
func (r *quorumRound) partLost(p part, err error) {
	if !errors.Is(err, renewal.ErrGone) && !errors.Is(err, renewal.ErrExpired) {
		return
	}
	for i, c := range r.quorum.servers {
		if c == p.known().client() {
			r.regain(i)
		}
	}
}

// wait schedules the next attempt. Without a wheel there is none.
func (v *vacancy) wait() {
	c := v.round.won
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Err() != nil {
		return
	}
	timer, err := wheelentry.AfterFunc(v.round.quorum.wheel, v.pause/2+rand.N(v.pause/2+1), v.ask)
	if err == nil {
		v.timer = timer
		c.vacant[v] = struct{}{}
	}
	v.pause = min(2*v.pause, v.mutex().config.lease/6, longestRegain)
}

func (v *vacancy) mutex() *Mutex { return v.round.mutex.parts[v.server] }

// ask makes an attempt, without blocking.
func (v *vacancy) ask(stopped error) {
	if stopped != nil || !v.round.won.wants(v) {
		return
	}
	m, c := v.mutex(), v.mutex().client()
	if v.round.quorum.stuck[v.server].Load() >= maxStuck {
		v.wait()
		return
	}
	if !c.gate.Enter() { // Close ends the hold
		return
	}
	a := m.newPartAcquisition(context.WithoutCancel(v.round.ctx), v.round.id, v.server)
	a.request = a.nextRequest()
	a.request.regains = true
	a.askFor(func(h *held, err error) {
		defer c.gate.Leave()
		v.fill(h, err)
	})
}

// fill adds the part to the hold, or waits for the next attempt.
func (v *vacancy) fill(h *held, err error) {
	switch {
	case errors.Is(err, errForced):
	case err != nil:
		v.wait()
	default:
		r, c := v.round, h.client()
		c.limit(h, r.wonAt.Add(h.mutex.config.maxHold).Sub(c.wheel.Now()))
		c.monitor.tracePart(r.ctx, h)
		if !r.won.add(h) {
			h.abandon()
		}
	}
}
