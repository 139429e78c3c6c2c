package redistest

import (
	"errors"
	"fmt"

	"github.com/cogwheel-go/cogwheel"
)

// CheckRefusal returns an error unless a constructor has refused its arguments by a typed error exactly when
// they are out of range. Such an error names the argument, and is short enough for a log.
func CheckRefusal(err error, inRange bool) error {
	refused, typed := errors.AsType[*cogwheel.InvalidError](err)
	switch {
	case inRange && err != nil:
		return fmt.Errorf("refused although it is in range: %w", err)
	case inRange:
		return nil
	case err == nil:
		return errors.New("accepted although it is out of range")
	case !typed:
		return fmt.Errorf("not a typed error: %w", err)
	case refused.Package == "" || refused.Field == "" || refused.Reason == "" || len(err.Error()) > 2000:
		return fmt.Errorf("an error that does not tell what was refused: %w", err)
	}
	return nil
}
