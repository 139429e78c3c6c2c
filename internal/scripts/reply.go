package scripts

import (
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// ErrReply matches the error of a reply that no version of the script returns, as from a proxy or a server that
// confuses replies. The effect of the call is not known, so nothing counts as granted.
var ErrReply = errors.New("unexpected reply")

// Unexpected returns an error that matches ErrReply and shows the reply, shortened if it is long.
func Unexpected(reply any) error {
	return fmt.Errorf("%w: %s", ErrReply, Quote(fmt.Sprint(reply)))
}

// Integers returns a reply that is a list of integers. Its length must be one of counts, if there are any. The error is
// that of the call, or matches ErrReply.
func Integers(cmd *redis.Cmd, counts ...int) ([]int64, error) {
	if err := cmd.Err(); err != nil {
		return nil, err
	}
	reply, err := cmd.Int64Slice()
	if err != nil || len(counts) > 0 && !slices.Contains(counts, len(reply)) {
		return nil, Unexpected(cmd.Val())
	}
	return reply, nil
}

// Flags returns a reply of n integers, each of which is 1 for true or 0 for false.
func Flags(cmd *redis.Cmd, n int) ([]bool, error) {
	reply, err := Integers(cmd, n)
	if err != nil {
		return nil, err
	}
	flags := make([]bool, n)
	for i, one := range reply {
		if one != 0 && one != 1 {
			return nil, Unexpected(cmd.Val())
		}
		flags[i] = one == 1
	}
	return flags, nil
}

// Flag returns a reply of one integer, which is 1 for true or 0 for false.
func Flag(cmd *redis.Cmd) (bool, error) {
	one, err := Integer(cmd)
	if err == nil && one != 0 && one != 1 {
		err = Unexpected(cmd.Val())
	}
	return one == 1 && err == nil, err
}

// Integer returns a reply of one integer.
func Integer(cmd *redis.Cmd) (int64, error) {
	if err := cmd.Err(); err != nil {
		return 0, err
	}
	n, err := cmd.Int64()
	if err != nil {
		return 0, Unexpected(cmd.Val())
	}
	return n, nil
}
