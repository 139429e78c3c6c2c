package redislock

// Join makes one Lock of several, all of which must be held, as MultiMutex does.
func (c *Client) Join(parts ...*Lock) *Lock {
	return c.compositeLock("composite", newComposite(len(parts), parts, nil).start())
}

// SharesScripts reports whether calls of the Client share scripts.
func (c *Client) SharesScripts() bool { return c.redis.Sender.Shares() }
