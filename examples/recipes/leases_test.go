package recipes_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/examples/recipes"
	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// leaseServer is a server with one lease.
type leaseServer struct {
	mu      sync.Mutex
	id      string
	expires time.Time
	down    bool
}

var errRefused = errors.New("refused")

func (s *leaseServer) Grant(_ context.Context, _, id string, ttl time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down || s.expires.After(time.Now()) {
		return errRefused
	}
	s.id, s.expires = id, time.Now().Add(ttl)
	return nil
}

func (s *leaseServer) Extend(_ context.Context, leases []renewal.Ref) ([]bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errRefused
	}
	known := make([]bool, len(leases))
	for i, l := range leases {
		if known[i] = l.ID == s.id && s.expires.After(time.Now()); known[i] {
			s.expires = time.Now().Add(l.TTL)
		}
	}
	return known, nil
}

func (s *leaseServer) GiveBack(_ context.Context, _, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == s.id {
		s.expires = time.Time{}
	}
	return nil
}

func TestLeased(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	leased := func(t *testing.T, f func(s *leaseServer, ctx context.Context) error) (*leaseServer, error) {
		t.Helper()
		w, err := wheel.New()
		require.NoError(t, err)
		defer w.Stop(context.Background())
		renewals, err := renewal.New(w)
		require.NoError(t, err)
		defer renewals.Close(context.Background())
		s := new(leaseServer)
		leases, err := renewals.Destination(recipes.Backend{LeaseServer: s})
		require.NoError(t, err)
		return s, recipes.Leased(t.Context(), s, leases, "shard-3", ttl, func(ctx context.Context) error { return f(s, ctx) })
	}
	for what, of := range map[string]struct {
		f    func(s *leaseServer, ctx context.Context) error
		want error
	}{
		"is renewed, and refused to others": {func(s *leaseServer, ctx context.Context) error {
			time.Sleep(10 * ttl)
			require.ErrorIs(t, s.Grant(ctx, "shard-3", "other", ttl), errRefused)
			return ctx.Err()
		}, nil},
		"is lost before it ends while the server is down": {func(s *leaseServer, ctx context.Context) error {
			s.mu.Lock()
			s.down = true
			s.mu.Unlock()
			<-ctx.Done()
			s.mu.Lock()
			defer s.mu.Unlock()
			require.True(t, s.expires.After(time.Now()))
			return nil
		}, renewal.ErrExpired},
		"is lost when the server no longer knows it": {func(s *leaseServer, ctx context.Context) error {
			s.mu.Lock()
			s.id = "other"
			s.mu.Unlock()
			<-ctx.Done()
			return nil
		}, renewal.ErrGone},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, err := leased(t, of.f)
				require.ErrorIs(t, err, of.want)
				s.mu.Lock()
				defer s.mu.Unlock()
				require.Equal(t, s.id == "other", s.expires.After(time.Now()), "what is its own is given back")
			})
		})
	}
}
