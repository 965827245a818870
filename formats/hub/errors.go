package hub

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

// Error is why a model could not be had by its name.
type Error struct {
	Model  string
	Reason string
	hint   string
	absent bool  // the server says that there is nothing of the name
	Err    error // what lies below it, or nil
}

func (e *Error) Error() string {
	switch {
	case e.Err == nil || e.Reason != "" && e.Err == fs.ErrNotExist: // which the reason has said
		return e.Model + ": " + e.Reason
	case e.Reason == "":
		return e.Model + ": " + e.Err.Error()
	}
	return e.Model + ": " + e.Reason + ": " + e.Err.Error()
}

// Unwrap returns what lies below the error.
func (e *Error) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *Error) Hint() string { return e.hint }

// temporary is an error that may not come again.
type temporary struct {
	error
	after time.Duration // that the server asks to wait; 0: nothing
	dial  bool          // there was no connection
}

func (e *temporary) Unwrap() error { return e.error }

// stalled means that nothing came for too long.
type stalled time.Duration

func (s stalled) Error() string {
	return fmt.Sprintf("the server sent nothing for %v", time.Duration(s))
}

// goesOn is what to do about what may be better later.
const goesOn = "what has come is kept: the same command goes on with it"

// ended is the error of a download that was told to end.
func (d *download) ended(ctx context.Context) error {
	return &Error{Model: d.name.String(), Err: ctx.Err(), hint: goesOn}
}

// failed makes the error of a request for a model of what came of it.
func (d *download) failed(what string, err error) error {
	var known *Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case d.apart && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)):
		return &Error{Model: d.name.String(), Reason: what + ": the disk of the output is full", Err: err, hint: "make room; " + goesOn}
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return &Error{Model: d.name.String(), Reason: what + ": the disk of the cache is full", Err: err, hint: "make room, or name another folder by HF_HUB_CACHE; " + goesOn}
	}
	e := &Error{Model: d.name.String(), Reason: what, Err: err}
	if t, ok := errors.AsType[*temporary](err); ok {
		e.Err, e.hint = t.error, goesOn
		if t.dial {
			e.hint = "is there a network? HF_ENDPOINT names another server than " + d.o.Endpoint + "; " + d.name.here() + " needs none"
		}
	}
	return e
}

// codeNoRevision is how a hub says that a repository has no such branch, tag or commit.
const codeNoRevision = "RevisionNotFound"

// refused makes the error of an answer that is no success. What names the file, or is "".
func (d *download) refused(res *http.Response, what string) error {
	at := d.o.Endpoint
	code := res.Header.Get("X-Error-Code")
	e := &Error{Model: d.name.String(), absent: code == codeNoRevision || res.StatusCode == http.StatusNotFound}
	if what != "" {
		what += ": "
	}
	token := d.token != ""
	switch status := res.StatusCode; {
	case status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status == http.StatusTooEarly || status >= 500:
		return &temporary{error: fmt.Errorf("the server answers %s", statusName(status)), after: retryAfter(res.Header.Get("Retry-After"), time.Now())}
	case code == "GatedRepo" && !token:
		e.Reason = what + "is gated: its owner asks for consent first"
		e.hint = fmt.Sprintf("accept at %s/%s, and set HF_TOKEN to a token of yours", at, d.name.page())
	case code == "GatedRepo":
		e.Reason = what + "is gated, and your token has no access to it"
		e.hint = fmt.Sprintf("ask for it at %s/%s", at, d.name.page())
	case code == "DisabledRepo":
		e.Reason = what + "is disabled on the hub"
	case code == codeNoRevision:
		e.Reason = fmt.Sprintf("there is no revision %s", d.name.Revision)
		e.hint = "name a branch, a tag or a commit"
	case code == "EntryNotFound" || status == http.StatusNotFound && what != "":
		e.Reason = what + "the server does not have it, though it lists it"
	case status == http.StatusUnauthorized && token && code != "RepoNotFound":
		e.Reason = what + "the server does not take your token"
		e.hint = "set HF_TOKEN to another, or unset it and delete the token file for a public model"
	case (status == http.StatusNotFound || status == http.StatusUnauthorized) && !token:
		e.Reason = what + "there is no such " + d.name.what() + ", or it is private"
		e.hint = "check the name, which is no folder here either; for a private " + d.name.what() + " set HF_TOKEN to a token of yours"
	case status == http.StatusNotFound || status == http.StatusUnauthorized:
		e.Reason = what + "there is no such " + d.name.what() + ", or your token has no access to it"
		e.hint = "check the name, which is no folder here either"
	case status == http.StatusForbidden:
		e.Reason = what + "the server forbids it"
		e.hint = "set HF_TOKEN to a token with access to it"
		if token {
			e.hint = "your token has no access to it"
		}
	default:
		e.Reason = fmt.Sprintf("%sthe server answers %s", what, statusName(status))
	}
	if message := res.Header.Get("X-Error-Message"); message != "" && len(message) < 300 && code != "GatedRepo" {
		e.Reason += fmt.Sprintf(" (%s)", message)
	}
	return e
}

func statusName(status int) string {
	if text := http.StatusText(status); text != "" {
		return fmt.Sprintf("%d (%s)", status, text)
	}
	return strconv.Itoa(status)
}

// retryAfter reads how long a server asks to wait, in seconds or as a date; 0 where it does not.
func retryAfter(text string, now time.Time) time.Duration {
	const most = 24 * 60 * 60
	if s, err := strconv.Atoi(text); err == nil {
		return time.Duration(min(max(s, 0), most)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), most*time.Second)
	}
	return 0
}
