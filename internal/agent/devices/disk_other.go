//go:build !linux && !darwin

package devices

import "errors"

// free is not known how to be asked on other systems.
func free(string) (int64, error) { return 0, errors.ErrUnsupported }
