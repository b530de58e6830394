package llm_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// instant is a provider that answers immediately with minimal work.
type instant struct{ answer, kind string }

func (p instant) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", p.kind)
	io.WriteString(w, p.answer)
}

// prompt returns a body of about n bytes.
func prompt(n int, stream bool) string {
	b := &strings.Builder{}
	b.WriteString(`{"model":"small","stream":` + map[bool]string{true: "true", false: "false"}[stream] + `,"messages":[{"role":"user","content":"x"}`)
	for b.Len() < n {
		b.WriteString(`,{"role":"assistant","content":"` + strings.Repeat("some words \\n", 40) + `"},{"role":"user","content":"` + strings.Repeat("more of them ", 20) + `"}`)
	}
	return b.String() + "]}"
}

const (
	plainAnswer = `{"id":"x","choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":30,"completion_tokens":7,"total_tokens":37}}`
	event       = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}],\"usage\":null}\n\n"
)

// BenchmarkCall compares a provider with the same one behind the gateway. One call at a time measures the added latency
// ("p50-µs"); many at once measure the throughput.
func BenchmarkCall(b *testing.B) {
	stream := instant{strings.Repeat(event, 50) + "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":30,\"completion_tokens\":50,\"total_tokens\":80}}\n\ndata: [DONE]\n\n", "text/event-stream"}
	for _, c := range []struct {
		name     string
		provider http.Handler
		body     string
	}{
		{"small", instant{plainAnswer, "application/json"}, prompt(100, false)},
		{"prompt-100k", instant{plainAnswer, "application/json"}, prompt(100_000, false)},
		{"stream", stream, prompt(100, true)},
	} {
		f := open(b, c.provider)
		for name, url := range map[string]string{"direct": f.provider.URL, "gateway": f.front.URL} {
			b.Run(c.name+"/"+name+"/one", func(b *testing.B) { one(b, url, c.body) })
			b.Run(c.name+"/"+name+"/many", func(b *testing.B) {
				b.SetParallelism(16)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						call(b, url, c.body)
					}
				})
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
			})
		}
	}
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}}

func one(b *testing.B, url, body string) {
	var times []time.Duration
	for b.Loop() {
		start := time.Now()
		call(b, url, body)
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1000, "p50-µs")
}

func call(b *testing.B, url, body string) {
	resp, err := client.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		b.Error(err)
		return
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 || n == 0 {
		b.Error(resp.StatusCode, err)
	}
}

// BenchmarkServe runs the gateway without sockets between the guest and it, for profiles.
func BenchmarkServe(b *testing.B) {
	f := open(b, instant{}, func(f *fixture) {
		f.config.Local = func(caisson.Provider, string) (http.Handler, error) {
			return instant{plainAnswer, "application/json"}, nil
		}
	})
	err := f.gateway.Configure(caisson.GatewayConfig{Providers: []caisson.Provider{{Name: "p", Kind: caisson.ProviderScripted}}, Models: models("p")})
	if err != nil {
		b.Fatal(err)
	}
	ctx := caisson.WithGuest(context.Background(), *f.guest)
	body := prompt(2000, false)
	b.ReportAllocs()
	for b.Loop() {
		r, _ := http.NewRequestWithContext(ctx, "POST", "/v1/chat/completions", strings.NewReader(body))
		w := &discard{header: http.Header{}}
		f.gateway.ServeHTTP(w, r)
		if w.status != 200 {
			b.Fatal(w.status)
		}
	}
}

type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
