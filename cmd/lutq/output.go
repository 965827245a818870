package main

import (
	"errors"

	"github.com/lutq/lutq/formats/outdir"
)

// outputHint adds what to do about an output that cannot be written.
func outputHint(err error) error {
	switch {
	case errors.Is(err, outdir.ErrExists):
		return hintError{err, "--force replaces it"}
	case errors.Is(err, outdir.ErrReadOnly):
		return hintError{err, "name another OUT, or allow it with chmod u+w"}
	case errors.Is(err, outdir.ErrForeign):
		return hintError{err, "name another OUT, or move away yourself what is there"}
	case errors.Is(err, outdir.ErrOtherRun):
		return hintError{err, "give the same options to go on with it, or delete the folder to start anew"}
	}
	return err
}
