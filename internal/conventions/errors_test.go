package conventions_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/conventions"
)

func TestJoin(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	require.NoError(t, conventions.Join())
	require.NoError(t, conventions.Join(nil, nil))
	require.Equal(t, first, conventions.Join(nil, first))
	both := conventions.Join(first, nil, fmt.Errorf("wrapped: %w", second))
	require.EqualError(t, both, "first; wrapped: second")
	require.ErrorIs(t, both, first)
	require.ErrorIs(t, both, second)
}

func TestAlso(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	require.Equal(t, first, conventions.Also(first, nil))
	require.Equal(t, first, conventions.Also(first, first))
	both := conventions.Also(first, second)
	require.EqualError(t, both, "first; second")
	require.Equal(t, both, conventions.Also(both, second))
}

func TestJoin_NameEachCauseOnceOnOneLine(t *testing.T) {
	t.Parallel()
	late, refused := context.DeadlineExceeded, errors.New("connection refused")
	in := func(part string, err error) error { return fmt.Errorf("%s: %w", part, err) }
	for want, errs := range map[string][]error{
		"context deadline exceeded":                         {late, late},
		"a; b: context deadline exceeded":                   {in("a", late), late, in("b", late), late},
		"a: i/o timeout; context deadline exceeded":         {in("a", errors.New("i/o timeout")), late, late},
		"a; b: context deadline exceeded; context canceled": {in("a", late), context.Canceled, in("b", late)},
		"a: connection refused":                             {in("a", refused), refused},
		"a: connection refused; b: connection refused":      {in("a", refused), in("b", refused)},
		"connection refused; a: context deadline exceeded":  {errors.Join(refused, late), conventions.Join(in("a", late), late)},
	} {
		err := conventions.Join(errs...)
		require.EqualError(t, err, want)
		for _, cause := range []error{late, refused} {
			require.Equal(t, strings.Contains(want, cause.Error()), errors.Is(err, cause), want)
		}
	}
}
