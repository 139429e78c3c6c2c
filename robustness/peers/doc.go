// Package peers tests a lock whose key is a string, that of redislock.WithStringKey, beside the locks of other
// libraries for which it is made: bsm/redislock, redsync on one pool, node-redlock, and the Lock of redis-py. Their
// processes take one name in turns, are killed while they hold it, work beyond the end of their leases, and release
// too late. What each of them may believe of its holds is a claim, with two instants; claims of one name must not
// overlap.
//
// node-redlock is installed by npm from testdata/node; its tests are skipped where node or npm is missing, or the
// registry cannot be reached.
package peers
