package hub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lutq/lutq/formats/input"
)

const (
	maxRedirects = 10
	longestWait  = 5 * time.Minute // that a server may ask for
	enough       = 1 << 20         // bytes that a try brought, so that it was none in vain
)

// again does try until it ends well, or with an error that stays, or often enough in vain. A try returns the bytes that it
// brought. What names what is at hand.
func (d *download) again(ctx context.Context, what string, try func() (int64, error)) error {
	for vain := 0; ; {
		brought, err := try()
		if ctx.Err() != nil && err != nil {
			return d.ended(ctx)
		}
		var t *temporary
		if err == nil || !errors.As(err, &t) {
			return d.failed(what, err)
		}
		if vain++; brought >= enough {
			vain = 1
		}
		// At the very beginning there is rather no network than one that fails for a moment.
		if vain >= d.o.Tries || t.dial && what == listingName || t.after > longestWait {
			if t.after > longestWait {
				t.error = fmt.Errorf("%w and asks to wait for %v", t.error, t.after)
			}
			return d.failed(what, err)
		}
		wait := d.o.wait(vain, t.after)
		d.tell(fmt.Sprintf("%s: %v, trying again in %v", what, t.error, wait.Round(time.Second)))
		if pause(ctx, wait) != nil {
			return d.ended(ctx)
		}
	}
}

// answer is one to a request, behind all redirects.
type answer struct {
	*http.Response
	linked http.Header // of the first that names a large file's hash
	watch  *watch
}

// Close ends the request.
func (a *answer) Close() {
	a.Body.Close()
	a.watch.stop()
}

// Read reads the body. Errors of the connection are temporary.
func (a *answer) Read(p []byte) (int, error) {
	n, err := a.Body.Read(p)
	if n > 0 {
		a.watch.alive()
	}
	if err != nil && err != io.EOF {
		err = a.watch.tell(err)
	}
	return n, err
}

// watch ends a request that brings nothing for too long.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	after  time.Duration
}

func newWatch(ctx context.Context, after time.Duration) *watch {
	w := &watch{after: after}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.timer = time.AfterFunc(after, func() { w.cancel(stalled(after)) })
	return w
}

func (w *watch) alive() { w.timer.Reset(w.after) }

func (w *watch) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// tell makes a connection's error one that says what it was.
func (w *watch) tell(err error) error {
	var s stalled
	if errors.As(context.Cause(w.ctx), &s) {
		return &temporary{error: s}
	}
	var address *url.Error // which may have a signature in it
	if errors.As(err, &address) {
		err = address.Err
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		err = errors.New("the server closed the connection early")
	}
	op, isOp := errors.AsType[*net.OpError](err)
	return &temporary{error: err, dial: isOp && op.Op == "dial"}
}

// span is a part of a file: from a byte on, to its end or before another byte. The zero span is all of it.
type span struct{ from, to int64 }

// String returns the span as a Range.
func (s span) String() string {
	if s.to == 0 {
		return fmt.Sprintf("bytes=%d-", s.from)
	}
	return fmt.Sprintf("bytes=%d-%d", s.from, s.to-1)
}

// send sends a request for a part and follows redirects. The token goes to the endpoint alone. What names the file, or is "". An answer
// that is no success is an error, but for one that has no such range.
func (d *download) send(ctx context.Context, method, address, what string, part span) (a *answer, err error) {
	at, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("HF_ENDPOINT %s is no address", d.o.Endpoint)
	}
	home := *at
	w := newWatch(ctx, d.o.Stall)
	defer func() {
		if err != nil {
			w.stop()
		}
	}()
	a = &answer{watch: w}
	for range maxRedirects {
		if at.Scheme != "http" && at.Scheme != "https" || at.Host == "" {
			return nil, fmt.Errorf("%s://%s is no address of a server", at.Scheme, at.Host)
		}
		req, err := http.NewRequestWithContext(w.ctx, method, at.String(), nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("User-Agent", "lutq")
		req.Header.Set("Accept-Encoding", "identity")
		if d.token != "" && at.Scheme == home.Scheme && at.Host == home.Host {
			req.Header.Set("Authorization", "Bearer "+d.token)
		}
		if part != (span{}) {
			req.Header.Set("Range", part.String())
		}
		res, err := d.client.Do(req)
		if err != nil {
			return nil, w.tell(err)
		}
		w.alive()
		if a.linked == nil && res.Header.Get("X-Linked-Etag") != "" {
			a.linked = res.Header
		}
		if res.StatusCode/100 != 3 {
			a.Response = res
			if res.StatusCode/100 != 2 && res.StatusCode != http.StatusRequestedRangeNotSatisfiable {
				res.Body.Close()
				return nil, d.refused(res, what)
			}
			return a, nil
		}
		res.Body.Close()
		next, err := at.Parse(res.Header.Get("Location"))
		if err != nil || res.Header.Get("Location") == "" {
			return nil, errors.New("the server redirects to nowhere")
		}
		if method == http.MethodHead && next.Host != at.Host && a.linked != nil { // it tells no more
			a.Response = res
			return a, nil
		}
		if at.Scheme == "https" && next.Scheme != "https" {
			return nil, fmt.Errorf("the server redirects to %s, which is not encrypted", next.Host)
		}
		at = next
	}
	return nil, fmt.Errorf("the server redirects more than %d times", maxRedirects)
}

// listingName is what messages call the list of files.
const listingName = "its list of files"

// list asks the server for the files of a revision.
func (d *download) list(ctx context.Context, revision string) (l *listing, err error) {
	address := fmt.Sprintf("%s/api/%s/%s/revision/%s?blobs=true", d.o.Endpoint, d.name.kind(), d.name.Repo(), url.PathEscape(revision))
	err = d.again(ctx, listingName, func() (int64, error) {
		a, err := d.send(ctx, http.MethodGet, address, "", span{})
		if err != nil {
			return 0, err
		}
		defer a.Close()
		if a.StatusCode != http.StatusOK {
			return 0, fmt.Errorf("the server answers %s", statusName(a.StatusCode))
		}
		data, err := input.ReadAll(a, input.Listing, a.ContentLength)
		if err != nil {
			return 0, err
		}
		l, err = parseListing(data)
		return 0, err
	})
	if err == nil && isCommit(revision) && l.commit != revision {
		err = &Error{Model: d.name.String(), Reason: fmt.Sprintf("the server answers with commit %s", l.commit)}
	}
	if err == nil && l.id != "" && !strings.EqualFold(l.id, d.name.Repo()) {
		d.o.Note(fmt.Sprintf("%s is called %s now", d.name.Repo(), l.id))
	}
	return l, err
}

// address returns that of a file.
func (d *download) address(commit, name string) string {
	parts := strings.Split(name, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return fmt.Sprintf("%s/%s/resolve/%s/%s", d.o.Endpoint, d.name.page(), commit, strings.Join(parts, "/"))
}

// ask asks the server for what its list does not tell of a file.
func (d *download) ask(ctx context.Context, commit string, f file) (file, error) {
	if f.sum != "" && f.size >= 0 {
		return f, nil
	}
	err := d.again(ctx, f.name, func() (int64, error) {
		a, err := d.send(ctx, http.MethodHead, d.address(commit, f.name), f.name, span{})
		if err != nil {
			return 0, err
		}
		defer a.Close()
		tag, size := a.Header.Get("ETag"), a.Header.Get("Content-Length")
		if a.linked != nil {
			tag, size = a.linked.Get("X-Linked-Etag"), a.linked.Get("X-Linked-Size")
		}
		tag = strings.Trim(strings.TrimPrefix(tag, "W/"), `"`)
		if f.sum == "" && !isHex(tag, 64) && !isHex(tag, 40) {
			return 0, fmt.Errorf("the server names no hash of it: its ETag is %.80q", tag)
		}
		if f.sum == "" {
			f.sum = tag
		}
		if f.size < 0 {
			if f.size, err = strconv.ParseInt(size, 10, 64); err != nil || f.size < 0 {
				return 0, errors.New("the server does not say how large it is")
			}
		}
		return 0, nil
	})
	return f, err
}
