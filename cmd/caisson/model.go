package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// modelCmd contains the commands that show models and their prices.
type modelCmd struct {
	Ls           modelLsCmd     `cmd:"" help:"List the models that sandboxes can be granted."`
	Prices       modelPricesCmd `cmd:"" help:"List imported prices."`
	ImportPrices modelImportCmd `cmd:"" name:"import-prices" help:"Import a price list."`
	Sync         modelSyncCmd   `cmd:"" help:"Download current lists of models and their prices."`
}

// modelLsCmd lists models.
type modelLsCmd struct{}

func (c *modelLsCmd) Help() string {
	return "Models and their providers are in the configuration file; if it has none, there are those of Anthropic, OpenAI, Google and OpenRouter that " +
		"are built in, and can be used if their key is stored (docs/models.md). Prices are in US dollars per million tokens.\n\n" +
		examples("caisson model ls", "caisson model ls -o json")
}

func (c *modelLsCmd) Run(ctx context.Context, a *app, api api) error {
	price := func(of func(caisson.Prices) caisson.USD) func(caisson.GatewayModel) string {
		return func(m caisson.GatewayModel) string {
			switch {
			case m.Free:
				return "free"
			case m.Prices == nil:
				return ""
			}
			return of(*m.Prices).String()
		}
	}
	if a.globals.Output == "table" && a.overSocket() {
		if remote := remoteGateway(ctx, api); remote != "" {
			a.infof("caisson: sandboxes of this host use the models of the gateway %s, and these are not those: run caisson model ls there; keys are stored there, too", remote)
		}
	}
	return asList(a, []column[caisson.GatewayModel]{
		{name: "ALIAS", value: func(m caisson.GatewayModel) string { return m.Alias }},
		{name: "PROVIDER", value: func(m caisson.GatewayModel) string { return m.Provider }},
		{name: "UPSTREAM", value: func(m caisson.GatewayModel) string { return cmp.Or(m.Upstream, m.Alias) }},
		{name: "INPUT", value: price(func(p caisson.Prices) caisson.USD { return p.Input })},
		{name: "OUTPUT", value: price(func(p caisson.Prices) caisson.USD { return p.Output })},
		{name: "CONTEXT", value: func(m caisson.GatewayModel) string { return formatNumber(m.Context) }},
		{name: "PROBLEM", wrap: true, value: func(m caisson.GatewayModel) string { return m.Problem }},
	})(api.ListModels(ctx))
}

// remoteGateway returns the URL of the model gateway on another machine that the daemon uses for its sandboxes, or "" if the
// daemon uses its own.
func remoteGateway(ctx context.Context, api api) string {
	st, err := api.Status(ctx)
	if err != nil {
		return "" // an older daemon does not support the request for the status
	}
	gateway, _ := st.Settings.InForce["gateway"].(map[string]any)
	url, _ := gateway["remoteURL"].(string)
	return safetext.Escape(url)
}

// modelPricesCmd lists imported prices.
type modelPricesCmd struct {
	Match string `arg:"" optional:"" help:"Only models with this in their name."`
}

func (c *modelPricesCmd) Help() string {
	return "Prices are in US dollars per million tokens.\n\n" + examples("caisson model prices", "caisson model prices claude-sonnet")
}

func (c *modelPricesCmd) Run(ctx context.Context, a *app, api api) error {
	price := func(of func(caisson.Prices) caisson.USD) func(caisson.ListedPrice) string {
		return func(p caisson.ListedPrice) string { return of(p.Prices).String() }
	}
	return asList(a, []column[caisson.ListedPrice]{
		{name: "MODEL", value: func(p caisson.ListedPrice) string { return p.Model }},
		{name: "PROVIDER", value: func(p caisson.ListedPrice) string { return p.Provider }},
		{name: "INPUT", value: price(func(p caisson.Prices) caisson.USD { return p.Input })},
		{name: "OUTPUT", value: price(func(p caisson.Prices) caisson.USD { return p.Output })},
		{name: "CONTEXT", value: func(p caisson.ListedPrice) string { return formatNumber(p.Context) }},
		{name: "SOURCE", value: func(p caisson.ListedPrice) string { return p.Source }},
		{name: "AGE", value: func(p caisson.ListedPrice) string { return age(p.At) }},
	})(api.ListPrices(ctx, c.Match))
}

// modelImportCmd imports a price list.
type modelImportCmd struct {
	List   string `arg:"" help:"File, https URL, or - for standard input." complete:"file"`
	Source string `help:"Name of the list; a list of the same name is replaced. The default is its URL or path, or stdin." placeholder:"NAME"`
}

func (c *modelImportCmd) Help() string {
	return "The list is LiteLLM's model_prices_and_context_window.json, OpenRouter's list of models, or a JSON list in the format of \"caisson model prices -o json\". " +
		"Nothing is downloaded unless you give a URL here. Prices in the configuration file override imported ones.\n\n" +
		examples("caisson model import-prices ./model_prices_and_context_window.json",
			"caisson model import-prices https://raw.githubusercontent.com/BerriAI/litellm/main/model_prices_and_context_window.json",
			"caisson model import-prices --source ours - < prices.json")
}

// importedPrices is the output of import-prices and sync with -o json.
type importedPrices struct {
	Source string `json:"source"` // name of the price list's source
	Models int    `json:"models"` // number of models that have a price in the list
}

// priceList is a price list and the name of its source.
type priceList struct {
	data   []byte // the text of the price list
	source string // name of the price list's source
}

// ProvideList reads the price list. The name of its source is the value of --source, or else the one that read returns.
func (c *modelImportCmd) ProvideList(ctx context.Context, a *app) (priceList, error) {
	data, source, err := c.read(ctx, a)
	return priceList{data, cmp.Or(c.Source, source)}, err
}

func (c *modelImportCmd) Run(ctx context.Context, a *app, list priceList, api api) error {
	n, err := api.ImportPrices(ctx, list.source, list.data)
	if err != nil {
		return err
	}
	return printDone(a, importedPrices{list.source, n}, strconv.Itoa(n)+" models have a price in "+list.source)
}

// read returns the price list, and where it comes from: its URL, its absolute path, or stdin.
func (c *modelImportCmd) read(ctx context.Context, a *app) (data []byte, source string, err error) {
	switch {
	case c.List == "-":
		data, err = readList(a.in)
		return data, "stdin", err
	case strings.Contains(c.List, "://"):
		data, err = fetchList(ctx, http.DefaultTransport, c.List)
		return data, c.List, err
	}
	source, err = filepath.Abs(c.List)
	if err != nil {
		return nil, "", err
	}
	f, err := os.Open(source)
	if err != nil {
		return nil, "", localError("list", source, err)
	}
	defer f.Close()
	data, err = readList(f)
	return data, source, err
}

const (
	maxPriceList = 16 << 20        // maximum size of a price list in bytes, as in the API
	fetchTimeout = 2 * time.Minute // time limit for the whole download of a price list
	maxRedirects = 3               // maximum number of redirects of one download
)

// readList reads a price list of at most maxPriceList bytes.
func readList(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxPriceList+1))
	if err != nil {
		return nil, caisson.Errorf(caisson.Unavailable, "the price list cannot be read: %v", err)
	}
	if len(data) > maxPriceList {
		return nil, caisson.Invalidf("list", "has more than %s", caisson.Size(maxPriceList))
	}
	return data, nil
}

// fetchList downloads the price list at a URL that the user has specified. It follows redirects on the same host only: the list
// determines what budgets allow, so it must come from the host that was specified.
func fetchList(ctx context.Context, transport http.RoundTripper, list string) ([]byte, error) {
	u, err := url.Parse(list)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, caisson.Invalidf("list", "%.200q is not of the form https://host/path; download it by other means and give the file", list)
	}
	client := &http.Client{
		Transport: transport, Timeout: fetchTimeout,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects || req.URL.Scheme != u.Scheme || req.URL.Host != u.Host {
				return errors.New("it redirects to " + req.URL.Host)
			}
			return nil
		},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, list, nil)
	if err != nil {
		return nil, caisson.Invalidf("list", "%s", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, caisson.Errorf(caisson.Unavailable, "the price list cannot be fetched: %v", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, caisson.Errorf(caisson.Unavailable, "%s responded with %s", u.Host, resp.Status)
	}
	return readList(resp.Body)
}
