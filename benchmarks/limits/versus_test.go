package limits_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// scriptTime returns how many microseconds the server has spent on scripts.
func scriptTime(b *testing.B, rdb *redis.Client) (us float64) {
	b.Helper()
	for _, m := range regexp.MustCompile(`cmdstat_evalsha:calls=\d+,usec=(\d+)`).FindAllStringSubmatch(rdb.Info(b.Context(), "commandstats").Val(), -1) {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			b.Fatal(err)
		}
		us += v
	}
	return us
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// BenchmarkVersus takes turns: in each round every implementation makes the same number of decisions, one
// implementation after the other, and what is reported is the median over the rounds of how much faster than
// redis_rate each of them was. So a machine that is busy for a while spoils a round, not a ratio. -benchtime
// 20x is twenty rounds.
func BenchmarkVersus(b *testing.B) {
	ending, cancel := context.WithCancel(b.Context())
	defer cancel()
	for _, load := range []struct{ keys, goroutines, decisions int }{{1, 1, 2000}, {1, 64, 20_000}, {64, 64, 10_000}} {
		if !full {
			load.decisions /= 20
		}
		for what, ctx := range map[string]context.Context{"background": context.Background(), "cancel": ending} {
			b.Run(fmt.Sprintf("keys=%d/goroutines=%d/ctx=%s", load.keys, load.goroutines, what), func(b *testing.B) {
				all, n := peers(b, plenty, load.keys < load.goroutines)
				admin := redistest.Shared(b).Client(b)
				took, spent, sent := map[string][]float64{}, map[string]float64{}, map[string]int64{}
				base := redistest.Name(b)
				for b.Loop() {
					all = append(all[1:], all[0]) // none is always the first
					for _, p := range all {
						server, before, began := scriptTime(b, admin), n.Load(), time.Now()
						decide(b, ctx, p, base, load.keys, load.goroutines, load.decisions)
						took[p.name] = append(took[p.name], time.Since(began).Seconds())
						spent[p.name] += scriptTime(b, admin) - server
						sent[p.name] += n.Load() - before
					}
				}
				decisions := float64(load.decisions * b.N)
				for _, p := range all {
					ratios := make([]float64, b.N)
					for i := range ratios {
						ratios[i] = took["redis_rate"][i] / took[p.name][i]
					}
					b.ReportMetric(median(ratios), p.name+":x")
					b.ReportMetric(spent[p.name]/decisions, p.name+":server-us")
					b.ReportMetric(float64(sent[p.name])/decisions, p.name+":trips")
					b.ReportMetric(float64(load.decisions)/median(took[p.name]), p.name+":/s")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// decide makes so many decisions of one permit.
func decide(b *testing.B, ctx context.Context, p peer, base string, keys, goroutines, decisions int) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(decisions))
	var running sync.WaitGroup
	for g := range goroutines {
		key := fmt.Sprint(base, g%keys)
		running.Go(func() {
			for left.Add(-1) >= 0 {
				if ok, err := p.allow(ctx, key); err != nil || !ok {
					b.Errorf("denied: %v", err)
					return
				}
			}
		})
	}
	running.Wait()
}
