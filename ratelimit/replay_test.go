package ratelimit_test

func runChild(string) error { return nil }
