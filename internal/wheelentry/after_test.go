package wheelentry_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cogwheel-go/cogwheel/internal/wheelentry"
	"github.com/cogwheel-go/cogwheel/wheel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAfterEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := wheel.New()
		require.NoError(t, err)
		defer w.Stop(context.Background())
		passed, stop := wheelentry.AfterEnd(context.Background(), w, time.Second)
		require.Nil(t, passed)
		stop()

		ctx, cancel := context.WithCancel(t.Context())
		passed, stop = wheelentry.AfterEnd(ctx, w, time.Second)
		defer stop()
		time.Sleep(time.Minute)
		require.Empty(t, passed)
		began := time.Now()
		cancel()
		<-passed
		require.WithinDuration(t, began.Add(time.Second), time.Now(), 10*time.Millisecond)

		passed, stop = wheelentry.AfterEnd(ctx, w, time.Hour)
		defer stop()
		synctest.Wait()
		began = time.Now()
		_, err = w.Stop(t.Context())
		require.NoError(t, err)
		<-passed
		require.Equal(t, began, time.Now(), "it ends with the wheel")
	})
}
