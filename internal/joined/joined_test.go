package joined_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/joined"
)

func TestErrors(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	require.NoError(t, joined.Errors())
	require.NoError(t, joined.Errors(nil, nil))
	require.Equal(t, first, joined.Errors(nil, first))
	both := joined.Errors(first, nil, fmt.Errorf("wrapped: %w", second))
	require.EqualError(t, both, "first; wrapped: second")
	require.ErrorIs(t, both, first)
	require.ErrorIs(t, both, second)
}

func TestAlso(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	require.Equal(t, first, joined.Also(first, nil))
	require.Equal(t, first, joined.Also(first, first))
	both := joined.Also(first, second)
	require.EqualError(t, both, "first; second")
	require.Equal(t, both, joined.Also(both, second))
}
