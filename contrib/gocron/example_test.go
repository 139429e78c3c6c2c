package gocron_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"

	cogwheelgocron "github.com/cogwheel-go/cogwheel/contrib/gocron"
	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/redislock"
)

// Each job runs in one of the processes. The clocks of the processes differ by less than ten seconds.
func ExampleLocker() {
	rdb := redistest.Open() // redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	locks, err := redislock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(context.Background())

	locker := cogwheelgocron.Locker(locks, redislock.WithMinHold(10*time.Second))
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		log.Fatal(err)
	}
	ran := make(chan bool)
	_, err = scheduler.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
		gocron.NewTask(func() { close(ran) }), gocron.WithName("report"))
	if err != nil {
		log.Fatal(err)
	}
	scheduler.Start()
	<-ran
	fmt.Println(scheduler.Shutdown())
	// Output: <nil>
}

// All jobs run in the process that leads: one with an interval runs once in each interval.
func ExampleNewElector() {
	rdb := redistest.Open() // redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	locks, err := redislock.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(context.Background())

	elector := cogwheelgocron.NewElector(locks, "reports:leader", redislock.WithLease(10*time.Second))
	defer elector.Close()
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Fatal(err)
	}
	_, err = scheduler.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(func() {}), gocron.WithName("report"))
	if err != nil {
		log.Fatal(err)
	}
	scheduler.Start()
	fmt.Println(scheduler.Shutdown())
	// Output: <nil>
}
