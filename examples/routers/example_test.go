package routers_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"

	"github.com/cogwheel-go/cogwheel/cogwheeltest"
	"github.com/cogwheel-go/cogwheel/ratelimit"
	"github.com/cogwheel-go/cogwheel/ratelimit/httplimit"
)

// tenantLimits limits each tenant by its plan, here on an embedded server. Authentication has set the field User.
func tenantLimits() (limited httplimit.Middleware, done func()) {
	addr, stop, err := cogwheeltest.Embed()
	if err != nil {
		log.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	limits, err := ratelimit.New(rdb, ratelimit.WithTimeout(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	plans := map[string]ratelimit.Limit{"ada": ratelimit.PerHour(2)}
	perTenant := limits.Limiter("tenant", ratelimit.PerHour(1)) // the limit of tenants without a plan
	limited = httplimit.NewPerKey(perTenant, func(r *http.Request) (key string, limit ratelimit.Limit, limited bool) {
		tenant := r.Header.Get("User")
		plan, isKnown := plans[tenant]
		if !isKnown {
			plan = perTenant.Limit()
		}
		return tenant, plan, true
	})
	return limited, func() {
		_ = limits.Close(context.Background())
		_ = rdb.Close()
		stop()
	}
}

// show sends requests of two tenants, and prints the responses.
func show(h http.Handler) {
	for _, tenant := range []string{"ada", "ada", "ada", "bob"} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("User", tenant)
		h.ServeHTTP(w, r)
		fmt.Printf("%s %d %.17s %s\n", tenant, w.Code, w.Body, w.Header().Get("RateLimit"))
	}
}

// chi takes the middleware as it is.
func Example_chi() {
	limited, done := tenantLimits()
	defer done()

	router := chi.NewRouter()
	router.Use(limited)
	router.Get("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })
	show(router)
	// Output:
	// ada 200 hello "default";r=1;t=1800
	// ada 200 hello "default";r=0;t=3600
	// ada 429 too many requests "default";r=0;t=3600
	// bob 200 hello "default";r=0;t=3600
}

// gin asks for the decision, and aborts.
func Example_gin() {
	limited, done := tenantLimits()
	defer done()

	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.Use(func(c *gin.Context) {
		if !limited.Decide(c.Writer, c.Request) {
			c.Abort()
		}
	})
	router.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })
	show(router)
	// Output:
	// ada 200 hello "default";r=1;t=1800
	// ada 200 hello "default";r=0;t=3600
	// ada 429 too many requests "default";r=0;t=3600
	// bob 200 hello "default";r=0;t=3600
}

// echo asks for the decision, and does not call the next handler.
func Example_echo() {
	limited, done := tenantLimits()
	defer done()

	router := echo.New()
	router.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if !limited.Decide(c.Response(), c.Request()) {
				return nil
			}
			return next(c)
		}
	})
	router.GET("/", func(c echo.Context) error { return c.String(http.StatusOK, "hello") })
	show(router)
	// Output:
	// ada 200 hello "default";r=1;t=1800
	// ada 200 hello "default";r=0;t=3600
	// ada 429 too many requests "default";r=0;t=3600
	// bob 200 hello "default";r=0;t=3600
}
