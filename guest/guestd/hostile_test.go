package guestd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	framing "github.com/caisson-dev/caisson/internal/frame"
)

// liar returns a client whose processes answer every request with the output of say; not before the request, because an early
// answer is refused at once, which on a loaded machine would hide the tested behaviour.
func liar(t *testing.T, say func(in io.Reader, out io.Writer)) *Client {
	c := NewClient(func(context.Context, []string, bool) (caisson.Process, error) {
		return fakeProcess(t, func(in io.Reader, out, errs io.Writer) int {
			io.WriteString(errs, strings.Repeat("\x1b[2J evil ", 10_000))
			if _, err := io.ReadFull(in, make([]byte, 1)); err != nil {
				return 1
			}
			say(in, out)
			return 0
		}), nil
	})
	t.Cleanup(func() { c.Close() })
	return c
}

func jsonFrame(kind byte, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return framing.Append(nil, kind, b)
}

// calls makes every call of a client and returns the errors by name.
func calls(ctx context.Context, c *Client) map[string]error {
	errs := map[string]error{}
	_, errs["stat"] = c.StatFile(ctx, "/x")
	_, errs["list"] = c.ListFiles(ctx, "/x")
	_, errs["write"] = c.WriteFile(ctx, "/x", 0, io.LimitReader(zeroReader{}, 1<<20))
	errs["writetree"] = c.WriteTree(ctx, "/x", io.LimitReader(zeroReader{}, 1<<20))
	for name, open := range map[string]func() (io.ReadCloser, error){
		"read":     func() (io.ReadCloser, error) { return c.ReadFile(ctx, "/x", 0, 100) },
		"readtree": func() (io.ReadCloser, error) { return c.ReadTree(ctx, "/x") },
	} {
		r, err := open()
		if err == nil {
			_, err = io.Copy(io.Discard, r)
			r.Close()
		}
		errs[name] = err
	}
	return errs
}

var ok = jsonFrame(frameResult, result{})

func TestLiesAreErrors(t *testing.T) {
	fine := entry{Type: "file"}
	withName := func(name string) []byte {
		return append(bytes.Clone(ok), jsonFrame(frameItems, []entry{{Name: []byte(name), Type: "file"}})...)
	}
	bad := func(change func(*entry)) []byte {
		e := fine
		change(&e)
		return jsonFrame(frameResult, result{Entry: &e})
	}
	for name, said := range map[string][]byte{
		"nothing":              nil,
		"half a head":          {frameResult, 0},
		"huge frame":           {frameResult, 0xff, 0xff, 0xff, 0xff},
		"huge data":            append(bytes.Clone(ok), frameData, 0x7f, 0, 0, 0),
		"frame cut short":      {frameResult, 0, 0, 1, 0, 'x'},
		"unknown frame":        framing.Append(nil, 'Z', nil),
		"request":              jsonFrame(frameRequest, request{}),
		"not JSON":             framing.Append(nil, frameResult, []byte("{")),
		"two values":           framing.Append(nil, frameResult, []byte("{}{}")),
		"unknown field":        framing.Append(nil, frameResult, []byte(`{"x":1}`)),
		"deep":                 framing.Append(nil, frameResult, bytes.Repeat([]byte("["), jsonSize)),
		"text":                 bytes.Repeat([]byte("hello, host\n"), 1000),
		"wrong order":          jsonFrame(frameEnd, result{}),
		"end without content":  append(bytes.Clone(ok), jsonFrame(frameResult, result{})...),
		"name with slash":      withName("a/b"),
		"name with dots":       withName(".."),
		"name of nothing":      withName(""),
		"name with NUL":        withName("a\x00"),
		"name too long":        withName(strings.Repeat("x", 256)),
		"no items":             append(bytes.Clone(ok), jsonFrame(frameItems, []entry{})...),
		"too many items":       append(bytes.Clone(ok), framing.Append(nil, frameItems, []byte("["+strings.Repeat("{},", 5000)+"{}]"))...),
		"null items":           append(bytes.Clone(ok), framing.Append(nil, frameItems, []byte("["+strings.Repeat("null,", 5000)+"null]"))...),
		"negative size":        bad(func(e *entry) { e.Size = -1 }),
		"mode":                 bad(func(e *entry) { e.Mode = 0o10000 }),
		"type":                 bad(func(e *entry) { e.Type = "door" }),
		"target of a file":     bad(func(e *entry) { e.Target = []byte("x") }),
		"long target":          bad(func(e *entry) { e.Type, e.Target = "symlink", make([]byte, maxPath+1) }),
		"NUL in target":        bad(func(e *entry) { e.Type, e.Target = "symlink", []byte("a\x00") }),
		"uid":                  bad(func(e *entry) { e.UID = 1<<32 - 1 }),
		"unknown kind":         jsonFrame(frameResult, result{Kind: "unauthenticated", Message: "x"}),
		"success without data": bytes.Repeat(ok, 3),
	} {
		t.Run(name, func(t *testing.T) {
			c := liar(t, func(in io.Reader, out io.Writer) {
				go io.Copy(io.Discard, in)
				out.Write(said)
			})
			for call, err := range calls(testContext(t), c) {
				if caisson.KindOf(err) != caisson.Unavailable {
					t.Errorf("%s: %v (%s)", call, err, caisson.KindOf(err))
				}
				if err != nil && strings.ContainsAny(err.Error(), "\x1b") {
					t.Errorf("%s: the error has control characters", call)
				}
			}
		})
	}
}

func TestMessagesAreMadePlain(t *testing.T) {
	c := liar(t, func(in io.Reader, out io.Writer) {
		go io.Copy(io.Discard, in)
		out.Write(jsonFrame(frameResult, result{Kind: caisson.NotFound, Message: "\x1b[31mred\u202e\n" + strings.Repeat("x", 5000)}))
	})
	_, err := c.StatFile(testContext(t), "/x")
	wantKind(t, err, caisson.NotFound)
	if msg := caisson.MessageOf(err); !strings.HasPrefix(msg, "?[31mred??xxx") || len(msg) > 400 {
		t.Errorf("message is %q", msg)
	}
}

func TestStrangeTimesCanBeMarshalled(t *testing.T) {
	for _, e := range []entry{{Sec: 1 << 62}, {Sec: -1 << 62}, {Nsec: -5}, {Sec: 253402300800}} {
		e.Type = "file"
		info, err := e.info("/x", "x")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(info); err != nil {
			t.Error(err)
		}
	}
}

// A stalled peer blocks no call after its ctx has ended, even if its streams stay open.
func TestStalling(t *testing.T) {
	for name, said := range map[string][]byte{
		"silent":     nil,
		"mid-frame":  {frameResult, 0, 0},
		"after okay": ok,
		"mid-data":   append(bytes.Clone(ok), frameData, 0, 0, 0, 9, 'x'),
	} {
		t.Run(name, func(t *testing.T) {
			forever := make(chan struct{})
			t.Cleanup(func() { close(forever) })
			c := NewClient(func(context.Context, []string, bool) (caisson.Process, error) {
				outR, outW := io.Pipe()
				inR, inW := io.Pipe()
				go func() {
					// An early answer is refused at once, which is not tested here.
					io.ReadFull(inR, make([]byte, 1))
					outW.Write(said)
				}()
				go func() {
					<-forever
					outR.Close()
					outW.Close()
					inR.Close()
				}()
				return &pipes{stdin: inW, stdout: outR, end: func() {}}, nil // cannot even be killed
			})
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if name == "after okay" {
				// Also while content is sent.
				_, err := c.WriteFile(ctx, "/x", 0, zeroReader{})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("write: %v", err)
				}
			}
			for call, err := range calls(ctx, c) {
				answered := call == "stat" && caisson.KindOf(err) == caisson.Unavailable // without an entry
				if !errors.Is(err, context.DeadlineExceeded) && !answered {
					t.Errorf("%s: %v", call, err)
				}
			}
		})
	}
}

func TestEndlessAnswers(t *testing.T) {
	entries := make([]entry, 100)
	for i := range entries {
		entries[i] = entry{Name: []byte("x"), Type: "file"}
	}
	items := jsonFrame(frameItems, entries)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c := liar(t, func(in io.Reader, out io.Writer) {
		go io.Copy(io.Discard, in)
		out.Write(ok)
		for {
			if _, err := out.Write(items); err != nil {
				return
			}
		}
	})
	_, err := c.ListFiles(testContext(t), "/x")
	wantKind(t, err, caisson.Exhausted)

	c = liar(t, func(in io.Reader, out io.Writer) {
		go io.Copy(io.Discard, in)
		out.Write(ok)
		for {
			if _, err := out.Write(framing.Append(nil, frameData, make([]byte, chunkSize))); err != nil {
				return
			}
		}
	})
	r := must[io.ReadCloser](t)(c.ReadFile(testContext(t), "/x", 0, 1<<20))
	n, err := io.Copy(io.Discard, r)
	if n > 1<<20 || caisson.KindOf(err) != caisson.Unavailable {
		t.Errorf("%d bytes of at most 1 MiB, %v", n, err)
	}
	r = must[io.ReadCloser](t)(c.ReadTree(testContext(t), "/x"))
	if _, err := io.Copy(io.Discard, r); err == nil {
		t.Error("endless zeros are an archive")
	}
	r.Close()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

func TestHostileWatch(t *testing.T) {
	for name, b := range map[string][]byte{
		"escaping path": jsonFrame(frameItems, []change{{Op: "create", Path: []byte("../../etc")}}),
		"absolute path": jsonFrame(frameItems, []change{{Op: "create", Path: []byte("/etc")}}),
		"unknown op":    jsonFrame(frameItems, []change{{Op: "explode", Path: []byte("x")}}),
		"NUL":           jsonFrame(frameItems, []change{{Op: "create", Path: []byte("a\x00")}}),
		"garbage":       []byte("garbage garbage"),
		"end":           jsonFrame(frameEnd, result{}),
	} {
		t.Run(name, func(t *testing.T) {
			c := liar(t, func(in io.Reader, out io.Writer) {
				out.Write(ok)
				out.Write(b)
				io.Copy(io.Discard, in)
			})
			events := must[<-chan caisson.FileEvent](t)(c.WatchFiles(testContext(t), "/w", true))
			if ev, open := <-events; open {
				t.Errorf("got %v", ev)
			}
		})
	}
}

func TestEarlySuccessIsNotBelieved(t *testing.T) {
	c := liar(t, func(in io.Reader, out io.Writer) {
		out.Write(ok)
		out.Write(jsonFrame(frameEnd, result{Entry: &entry{Type: "file"}}))
		io.Copy(io.Discard, in)
	})
	_, err := c.WriteFile(testContext(t), "/x", 0, zeroReader{})
	wantKind(t, err, caisson.Unavailable)
}

func TestServerRefusesGarbage(t *testing.T) {
	for name, b := range map[string][]byte{
		"garbage":       []byte("garbage"),
		"result":        ok,
		"huge":          {frameRequest, 0xff, 0, 0, 0},
		"not JSON":      framing.Append(nil, frameRequest, []byte("[]")),
		"unknown field": framing.Append(nil, frameRequest, []byte(`{"op":"stat","path":"","y":1}`)),
	} {
		t.Run(name, func(t *testing.T) {
			p := must[caisson.Process](t)(inProcess(t, t.TempDir())(t.Context(), []string{"files"}, true))
			go io.Copy(io.Discard, p.Stderr())
			p.Stdin().Write(b)
			p.Stdin().Close()
			if out := must[[]byte](t)(io.ReadAll(p.Stdout())); len(out) != 0 {
				t.Errorf("answered %q", out)
			}
			if st, _ := p.Wait(t.Context()); st.Code != exitFailure {
				t.Errorf("exit code %d", st.Code)
			}
		})
	}
}

// FuzzClient sends arbitrary answers to a client.
func FuzzClient(f *testing.F) {
	f.Add(ok)
	f.Add(append(bytes.Clone(ok), jsonFrame(frameItems, []entry{{Name: []byte("x"), Type: "file"}})...))
	f.Add(append(append(bytes.Clone(ok), framing.Append(nil, frameData, []byte("x"))...), jsonFrame(frameEnd, result{})...))
	f.Add(jsonFrame(frameResult, result{Kind: caisson.NotFound, Message: "no"}))
	f.Add(jsonFrame(frameResult, result{Entry: &entry{Type: "symlink", Target: []byte("x")}}))
	f.Fuzz(func(t *testing.T, said []byte) {
		c := NewClient(func(context.Context, []string, bool) (caisson.Process, error) {
			return fakeProcess(t, func(in io.Reader, out, _ io.Writer) int {
				go io.Copy(io.Discard, in)
				out.Write(said)
				return 0
			}), nil
		})
		defer c.Close()
		calls(testContext(t), c)
		infos, err := c.ListFiles(testContext(t), "/x")
		for _, e := range infos {
			if err == nil && (strings.ContainsAny(e.Name, "/\x00") || e.Path != "/x/"+e.Name) {
				t.Fatalf("let %+v through", e)
			}
		}
	})
}

// FuzzServer sends arbitrary requests to a server, in an empty directory that it must not leave.
func FuzzServer(f *testing.F) {
	for _, r := range []request{
		{Op: opStat, Path: []byte("/")}, {Op: opList, Path: []byte("/")}, {Op: opRead, Path: []byte("/x"), Offset: 1 << 62},
		{Op: opMkdir, Path: []byte("/../a"), All: true}, {Op: opRemove, Path: []byte(""), All: true}, {Op: opReadTree, Path: []byte("/..")},
	} {
		f.Add(jsonFrame(frameRequest, r))
	}
	f.Add(append(append(jsonFrame(frameRequest, request{Op: opWrite, Path: []byte("/a/b")}), framing.Append(nil, frameData, []byte("x"))...), framing.Append(nil, frameEnd, nil)...))
	f.Fuzz(func(t *testing.T, asked []byte) {
		p := must[caisson.Process](t)(inProcess(t, t.TempDir())(t.Context(), []string{"files"}, true))
		go io.Copy(io.Discard, p.Stderr())
		go func() {
			p.Stdin().Write(asked)
			p.Stdin().Close()
		}()
		io.Copy(io.Discard, p.Stdout())
		p.Wait(t.Context())
	})
}
