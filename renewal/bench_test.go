package renewal_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/renewal"
	"github.com/cogwheel-go/cogwheel/wheel"
)

// BenchmarkAddClose watches a lease that ends before it is renewed, beside others.
func BenchmarkAddClose(b *testing.B) {
	for _, others := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("leases=%d", others), func(b *testing.B) {
			w, err := wheel.New()
			require.NoError(b, err)
			defer w.Stop(b.Context())
			r, err := renewal.New(w)
			require.NoError(b, err)
			defer r.Close(b.Context())
			spec := func(i int) renewal.Spec {
				return renewal.Spec{Key: "lock", ID: strconv.Itoa(i), TTL: time.Hour, SentAt: w.Now()}
			}
			for i := range others {
				_, err := r.Watch(spec(i))
				require.NoError(b, err)
			}
			b.ReportAllocs()
			for b.Loop() {
				lease, err := r.Watch(spec(others))
				if err != nil {
					b.Fatal(err)
				}
				lease.Close(nil)
			}
		})
	}
}
