package recipes_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/examples/recipes"
)

func TestDebounce_PassesTheLastChangeOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const quiet, longest = 2 * time.Second, 10 * time.Second
		var mu sync.Mutex
		var passed []string
		began := time.Now()
		saves, err := recipes.NewDebounce(quiet, longest, func(name string, change int) {
			mu.Lock()
			defer mu.Unlock()
			passed = append(passed, fmt.Sprintf("%v: %s %d", time.Since(began).Round(100*time.Millisecond), name, change))
		})
		require.NoError(t, err)
		for i := range 15 { // to 21 s
			require.NoError(t, saves.Change("notes", i))
			time.Sleep(1500 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		require.NoError(t, saves.Change("notes", 15))
		require.NoError(t, saves.Stop(t.Context())) // passes on what is left
		require.Error(t, saves.Change("notes", 16))
		require.Equal(t, []string{"10s: notes 6", "20.5s: notes 13", "23s: notes 14", "1m22.5s: notes 15"}, passed)
	})
}

func TestDebounce_PassesNoChangeOnTwice(t *testing.T) {
	t.Parallel()
	const goroutines, changes = 4, 1_000
	var mu sync.Mutex
	passed := make([]int, goroutines*changes)
	saves, err := recipes.NewDebounce(0, 0, func(_ string, change int) {
		mu.Lock()
		defer mu.Unlock()
		passed[change]++
	})
	require.NoError(t, err)
	var changing sync.WaitGroup
	for g := range goroutines {
		changing.Go(func() {
			for i := range changes {
				if err := saves.Change("notes", g*changes+i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	changing.Wait()
	require.NoError(t, saves.Stop(context.Background()))
	require.Equal(t, 1, slices.Max(passed))
}
