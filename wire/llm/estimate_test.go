package llm_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/wire/llm"
)

// pixel is a PNG of one pixel, followed by many other bytes.
var pixel = func() string {
	png, _ := base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
	return base64.StdEncoding.EncodeToString(append(png, make([]byte, 90_000)...))
}()

// TestCutIsEstimated checks that a call that is cut off is charged an estimate of its text, without images, although the maximum
// is reserved. Usage that the provider has reported replaces the estimate.
func TestCutIsEstimated(t *testing.T) {
	text := strings.Repeat("four", 3000) // bytes
	chat := `{"stream":true,"messages":[{"role":"user","content":[{"type":"text","text":"` + text + `"}%s]}]}`
	claude := `{"max_tokens":9000000,"stream":true,"messages":[{"role":"user","content":[{"type":"text","text":"` + text + `"}%s]}]}`
	const began = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":3456,\"output_tokens\":1}}}\n\n"
	search := `{"max_tokens":9000000,"stream":true,"tools":[{"type":"web_search_20250305","name":"web_search"}],"messages":[{"role":"user","content":[{"type":"text","text":"` + text + `"}%s]}]}`
	google := `{"contents":[{"parts":[{"text":"` + text + `"}%s]}]}`
	for _, c := range []struct {
		name        string
		spoken      int // index
		body, image string
		before      string // data that the provider sends before the guest disconnects
		input       int64  // 0: estimated
		grows       bool   // the usage that the provider reports before the end is incomplete
	}{
		{"chat", 0, chat, `,{"type":"image_url","image_url":{"url":"data:image/png;base64,` + pixel + `"}}`, "", 0, false},
		{"messages", 2, claude, `,{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + pixel + `"}}`, "", 0, false},
		{"gemini", 3, google, `,{"inlineData":{"mimeType":"image/png","data":"` + pixel + `"}}`, "", 0, false},
		{"messages that began", 2, claude, "", began, 3456, false},
		{"messages with a search that began", 2, search, "", began, 3456, true},
	} {
		s := apiCalls[c.spoken]
		if s.kind == caisson.ProviderGemini {
			s.path = "/v1beta/models/small:streamGenerateContent"
		}
		for _, image := range slices.Compact([]string{"", c.image}) {
			t.Run(fmt.Sprint(c.name, " ", image != ""), func(t *testing.T) {
				p := newHang("text/event-stream", c.before)
				f := open(t, p, func(f *fixture) {
					f.config.APIs = []llm.API{s.api}
					f.grant.Allow = []string{caisson.GrantProviderTools}
				})
				if err := f.gateway.Configure(caisson.GatewayConfig{
					Providers: []caisson.Provider{{Name: "p", Kind: s.kind, BaseURL: f.provider.URL}},
					Models:    []caisson.Model{{Alias: "small", Provider: "p", Prices: prices, Context: 10_000_000, Output: 9_000_000}},
				}); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				req, _ := http.NewRequestWithContext(ctx, "POST", f.front.URL+s.path, strings.NewReader(fmt.Sprintf(c.body, image)))
				go func() {
					<-p.arrived
					cancel()
				}()
				if resp, err := http.DefaultClient.Do(req); err == nil {
					<-ctx.Done()
					resp.Body.Close()
				}
				poll.Until(t, patience, func() bool { return len(f.meter.rows()) == 1 })
				row := f.row()
				least, most := int64(len(text)/4), int64(len(text)/2)
				switch {
				case c.input != 0:
					least, most = c.input, c.input
				case image != "":
					least, most = least+500, most+2500
				}
				// Reaching the granted output would take minutes.
				if !row.Estimated || row.Tokens.Input < least || row.Tokens.Input > most || row.Tokens.Output < 1 || row.Tokens.Output > 1_000_000 {
					t.Errorf("%+v", row)
				}
				if m := row.AtMost; m == nil || m.USD < row.Cost || m.Tokens < row.Tokens.Total() || (c.input == 0 || c.grows) && m.USD != f.meter.most {
					t.Errorf("budgets count %+v of %+v", m, row)
				}
				if set := f.meter.most; set < 90*caisson.Dollar || row.Cost > set/5 || row.Cost < prices.Cost(row.Tokens) {
					t.Errorf("%v was set aside, %v charged", set, row.Cost)
				}
			})
		}
	}
}
