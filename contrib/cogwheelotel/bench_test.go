package cogwheelotel_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/cogwheel-go/cogwheel/contrib/cogwheelotel"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
)

// BenchmarkLimitHooks is the cheapest call there is, a denial from memory, and what hooks add to it.
func BenchmarkLimitHooks(b *testing.B) {
	hooks := func(opts ...cogwheelotel.Option) ratelimit.Option {
		telemetry, err := cogwheelotel.New(opts...)
		require.NoError(b, err)
		return ratelimit.WithHooks(telemetry.LimitHooks("api"))
	}
	for name, option := range map[string]ratelimit.Option{
		"none": ratelimit.WithHooks(ratelimit.Hooks{}),
		"noop": hooks(cogwheelotel.WithTracerProvider(tracenoop.NewTracerProvider()),
			cogwheelotel.WithMeterProvider(metricnoop.NewMeterProvider())),
		"sdk": hooks(cogwheelotel.WithTracerProvider(sdktrace.NewTracerProvider()),
			cogwheelotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())))),
	} {
		b.Run("hooks="+name, func(b *testing.B) {
			limits, err := ratelimit.New(redistest.Shared(b).Client(b), ratelimit.WithWheel(redistest.Wheel(b)), option)
			require.NoError(b, err)
			redistest.CloseWith(b, limits.Close)
			limit := limits.Limiter(redistest.Name(b), ratelimit.PerHour(1))
			_, err = limit.Allow(b.Context(), "key")
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				r, err := limit.Allow(b.Context(), "key")
				if err != nil || r.Allowed {
					b.Fatal(r, err)
				}
			}
		})
	}
}
