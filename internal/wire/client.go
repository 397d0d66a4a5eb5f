package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/destajo/destajo/fault"
)

// Client speaks to one agent. It opens streams as it needs them and keeps idle
// ones; its methods may be called at once from many goroutines.
type Client struct {
	http *http.Client
	dial func(context.Context) (net.Conn, error)
}

// NewClient makes a client that opens streams by dial.
func NewClient(dial func(context.Context) (net.Conn, error)) *Client {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		// There may be thousands of agents: streams are few and their buffers small.
		MaxIdleConnsPerHost: 2, IdleConnTimeout: 5 * time.Second, DisableCompression: true, ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10,
	}
	return &Client{&http.Client{Transport: t}, dial}
}

// Close closes idle streams.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Hello asks the agent who it is.
func (c *Client) Hello(ctx context.Context) (*Hello, error) {
	h := new(Hello)
	return h, c.json(ctx, http.MethodGet, PathHello, nil, h)
}

// Sync tells the agent what is wanted and hears what is.
func (c *Client) Sync(ctx context.Context, s *Sync) (*Report, error) {
	r := new(Report)
	return r, c.json(ctx, http.MethodPost, PathSync, s, r)
}

// Shutdown ends the agent.
func (c *Client) Shutdown(ctx context.Context, s *Shutdown) error {
	return c.json(ctx, http.MethodPost, PathShutdown, s, nil)
}

// Samples gives what was measured after a cursor.
func (c *Client) Samples(ctx context.Context, after int64) (*Samples, error) {
	s := new(Samples)
	return s, c.json(ctx, http.MethodGet, PathSamples+"?after="+strconv.FormatInt(after, 10), nil, s)
}

// HasBlob says whether the agent has a file.
func (c *Client) HasBlob(ctx context.Context, name string) (bool, error) {
	r, err := c.do(ctx, http.MethodHead, PathBlob+name, nil, 0, nil)
	if fault.KindOf(err) == fault.NotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, r.Body.Close()
}

// PutBlob sends a file; its name is the SHA-256 of its bytes in hexadecimal.
func (c *Client) PutBlob(ctx context.Context, name string, r io.Reader, size int64) error {
	resp, err := c.do(ctx, http.MethodPut, PathBlob+name, r, size, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Log reads at most so many bytes of a task's log from an offset.
func (c *Client) Log(ctx context.Context, task string, offset, most int64) ([]byte, error) {
	r, err := c.do(ctx, http.MethodGet, fmt.Sprintf("%s%s?offset=%d&max=%d", PathLog, url.PathEscape(task), offset, most), nil, 0, nil)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	data, err := io.ReadAll(io.LimitReader(r.Body, most))
	if err != nil {
		return nil, fault.Wrap(fault.Unreachable, err, "the log was cut off on its way")
	}
	return data, nil
}

// Outputs opens the tar.gz of what an ended task left; nil when that is nothing.
func (c *Client) Outputs(ctx context.Context, task string) (io.ReadCloser, error) {
	r, err := c.do(ctx, http.MethodGet, PathOutputs+url.PathEscape(task), nil, 0, nil)
	if err != nil {
		return nil, err
	}
	if r.StatusCode == http.StatusNoContent {
		return nil, r.Body.Close()
	}
	return r.Body, nil
}

// Keep opens the tar.gz of a task's checkpoint folder, with its ETag; nil when
// it is empty or as it was at the ETag given.
func (c *Client) Keep(ctx context.Context, task, etag string) (io.ReadCloser, string, error) {
	head := http.Header{}
	if etag != "" {
		head.Set("If-None-Match", etag)
	}
	r, err := c.do(ctx, http.MethodGet, PathKeep+url.PathEscape(task), nil, 0, head)
	if err != nil {
		return nil, "", err
	}
	if r.StatusCode == http.StatusNoContent || r.StatusCode == http.StatusNotModified {
		return nil, etag, r.Body.Close()
	}
	return r.Body, r.Header.Get("ETag"), nil
}

// Forward opens a plain stream to a port of a task.
func (c *Client) Forward(ctx context.Context, task string, port int) (net.Conn, error) {
	return c.upgrade(ctx, fmt.Sprintf("%s%s?port=%d", PathForward, url.PathEscape(task), port), "tcp")
}

// Shell opens a terminal in a task: frames, as shell.go says.
func (c *Client) Shell(ctx context.Context, task string, cols, rows int, command string) (net.Conn, error) {
	return c.upgrade(ctx, fmt.Sprintf("%s%s?cols=%d&rows=%d&command=%s", PathShell, url.PathEscape(task), cols, rows, url.QueryEscape(command)), "destajo-shell")
}

// upgrade turns a request into a stream of its own.
func (c *Client) upgrade(ctx context.Context, path, protocol string) (net.Conn, error) {
	r, err := c.do(ctx, http.MethodGet, path, nil, 0, http.Header{"Connection": {"Upgrade"}, "Upgrade": {protocol}})
	if err != nil {
		return nil, err
	}
	stream, ok := r.Body.(io.ReadWriteCloser)
	if r.StatusCode != http.StatusSwitchingProtocols || !ok {
		_ = r.Body.Close()
		return nil, fault.New(fault.Internal, "the agent opened no stream: %s", r.Status)
	}
	return upgraded{stream}, nil
}

// upgraded is a stream that was a request; it has no deadlines.
type upgraded struct{ io.ReadWriteCloser }

func (upgraded) LocalAddr() net.Addr              { return &net.UnixAddr{Net: "unix"} }
func (upgraded) RemoteAddr() net.Addr             { return &net.UnixAddr{Net: "unix"} }
func (upgraded) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (upgraded) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (upgraded) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

// json sends a value and reads one.
func (c *Client) json(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	var size int64
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return fault.Wrap(fault.Internal, err, "a request to the agent cannot be written")
		}
		body, size = bytes.NewReader(data), int64(len(data))
	}
	r, err := c.do(ctx, method, path, body, size, nil)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if out == nil {
		_, _ = io.Copy(io.Discard, r.Body)
		return nil
	}
	if err := json.NewDecoder(r.Body).Decode(out); err != nil {
		return fault.Wrap(fault.Unreachable, err, "the agent's answer cannot be read")
	}
	_, _ = io.Copy(io.Discard, r.Body)
	return nil
}

// do sends a request; an answer that is not one of success is a fault.
func (c *Client) do(ctx context.Context, method, path string, body io.Reader, size int64, head http.Header) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "a request to the agent cannot be made")
	}
	if head != nil {
		r.Header = head
	}
	r.ContentLength = size
	r.Header.Set(VersionHeader, strconv.Itoa(Version))
	resp, err := c.http.Do(r)
	if err != nil {
		var known *fault.Error
		if errors.As(err, &known) {
			return nil, known
		}
		return nil, fault.Wrap(fault.Unreachable, err, "the agent does not answer")
	}
	if resp.StatusCode < 400 {
		return resp, nil
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	var refusal Refusal
	switch {
	case json.Unmarshal(data, &refusal) == nil && refusal.Message != "":
		return nil, fault.New(fault.Kind(refusal.Kind), "%s", refusal.Message).Hint("%s", refusal.Hint)
	case resp.StatusCode == http.StatusNotFound:
		return nil, fault.New(fault.NotFound, "the agent has no %s", path)
	case resp.StatusCode == http.StatusUpgradeRequired:
		return nil, fault.New(fault.Conflict, "the agent speaks another version of our protocol").Hint("it is replaced when its machine is launched anew")
	}
	return nil, fault.New(fault.Internal, "the agent answered %s: %s", resp.Status, strings.TrimSpace(string(data)))
}
