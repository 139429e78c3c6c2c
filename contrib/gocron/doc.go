// Package gocron runs the jobs of several go-co-op/gocron schedulers once, by locks of package redislock. Its
// import path ends like that of gocron, so import it under another name, such as cogwheelgocron.
//
// Use an Elector where all jobs may run in one process; the clocks of the processes may differ. Jobs with an interval,
// such as gocron.DurationJob, need one: each process counts the interval from its own start, so a Locker lets such a
// job run once in each process. After another process has begun to lead, the interval counts from its start.
//
// Use a Locker to spread jobs with instants, such as gocron.CronJob, over the processes: two runs of a job do not
// overlap. Pass redislock.WithMinHold to a Locker. Without it, a job runs in each process if it takes less time than
// the clocks differ.
//
// gocron does not notify a job when its lock is lost or another process leads: the job continues while another
// process may run it. Where that does damage, lock in the job with redislock.Mutex.Do: the context of its function
// ends when the lock is lost.
package gocron
