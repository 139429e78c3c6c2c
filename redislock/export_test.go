package redislock

import "errors"

// Join makes one Lock of several, all of which must be held, as MultiMutex does.
func (c *Client) Join(locks ...*Lock) *Lock {
	parts := make([]part, len(locks))
	for i, l := range locks {
		parts[i] = l.body.(part)
	}
	made := c.newComposite("composite", len(parts), parts, nil)
	made.start()
	return made.handle()
}

// SharesScripts reports whether calls of the Client share scripts.
func (c *Client) SharesScripts() bool { return c.redis.Sender.Shares() }

// IsSlow reports whether a Quorum has refused a lock because too few servers had answered in time.
func IsSlow(err error) bool { return errors.Is(err, errSlow) }
