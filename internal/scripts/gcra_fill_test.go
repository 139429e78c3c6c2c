package scripts_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// Requests that begin with the whole burst get exactly as many permits as it has, whatever the fractions are, if all of
// them fit and if not.
func TestRateGCRA_GrantsWhatTheBurstHas(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	name := redistest.Name(t)
	random := rand.New(rand.NewPCG(1, 2))
	all, some := 0, 0
	for i := range 3000 {
		den := 1 + random.Int64N([]int64{1, 3, 7, 1000, 1 << 40}[random.IntN(5)])
		price := big.NewInt(den*random.Int64N(1000) + random.Int64N(den) + 1) // in 1/den us
		burst := 1 + random.Int64N(2000)
		count := max(1, burst-2+random.Int64N(5)) // as many as there are, and one or two more or less
		full := new(big.Int).Mul(price, big.NewInt(burst))
		full.Add(full, big.NewInt(random.Int64N(2))) // and the least fraction more
		if random.IntN(2) == 0 {
			full.Sub(full, big.NewInt(1))
		}
		granted := min(count, new(big.Int).Div(full, price).Int64())

		micros := func(v *big.Int) (us, num int64) {
			q, r := new(big.Int).DivMod(v, big.NewInt(den), new(big.Int))
			return q.Int64(), r.Int64()
		}
		fullUs, fullNum := micros(full)
		priceUs, priceNum := micros(price)
		key := fmt.Sprint(name, i)
		cmd := scripts.RateGCRA.RunOnce(t.Context(), rdb, []string{key}, den, fullUs, fullNum, 0, 1, priceUs, priceNum, count)
		reply, err := cmd.Int64Slice()
		require.NoError(t, err)
		wantUs, wantNum := micros(new(big.Int).Mul(price, big.NewInt(granted)))
		what := fmt.Sprintf("%d of price %d+%d/%d, burst %d+%d/%d", count, priceUs, priceNum, den, fullUs, fullNum, den)
		require.Equal(t, granted, reply[4], what)
		require.Equal(t, []int64{wantUs, wantNum}, []int64{reply[1] - reply[0], reply[2]}, what)
		if granted == count {
			all++
		} else {
			some++
		}
	}
	require.Greater(t, min(all, some), 500, "both happen")
}
