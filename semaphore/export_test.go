package semaphore

// SharesScripts reports whether calls of the Client share scripts.
func (c *Client) SharesScripts() bool { return c.redis.Sender.Shares() }
