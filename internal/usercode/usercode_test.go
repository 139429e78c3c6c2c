package usercode_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/usercode"
)

func panics() { panic("by the test") }

func exits() { runtime.Goexit() }

func TestHere(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		f       func()
		want    string
		value   string
		returns bool
	}{
		"returns":      {func() {}, "", "", true},
		"panics":       {panics, "panicked: by the test", "by the test", true},
		"calls Goexit": {exits, "has ended its goroutine", "runtime.Goexit was called", false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var failure *usercode.Failure
			returned, ended := false, make(chan struct{})
			go func() {
				defer close(ended)
				usercode.Here(c.f, func(f *usercode.Failure) { failure = f })
				returned = true
			}()
			<-ended
			require.Equal(t, c.returns, returned)
			requireFailure(t, failure, c.want, c.value)
		})
	}
}

func TestApart(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		f           func()
		want, value string
	}{
		"returns":      {func() {}, "", ""},
		"panics":       {panics, "panicked: by the test", "by the test"},
		"calls Goexit": {exits, "has ended its goroutine", "runtime.Goexit was called"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var failure *usercode.Failure
			usercode.Apart(c.f, func(f *usercode.Failure) { failure = f })
			requireFailure(t, failure, c.want, c.value)
		})
	}
}

func requireFailure(t *testing.T, f *usercode.Failure, want, value string) {
	t.Helper()
	if want == "" {
		require.Nil(t, f)
		return
	}
	require.EqualError(t, f, want)
	require.Equal(t, want == "has ended its goroutine", f.Exited)
	if err, ok := f.Value.(error); ok {
		require.EqualError(t, err, value)
	} else {
		require.Equal(t, value, f.Value)
	}
	require.Contains(t, f.Stack, "usercode_test.", "where it happened")
}

func TestHere_AllocatesNothing(t *testing.T) {
	n := 0
	require.Zero(t, testing.AllocsPerRun(100, func() {
		usercode.Here(func() { n++ }, func(*usercode.Failure) { n-- })
	}))
	require.Positive(t, n)
}
