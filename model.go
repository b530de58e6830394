package caisson

import (
	"cmp"
	"context"
	"time"
)

// The kinds of providers, by the API that the provider implements.
const (
	ProviderOpenAI    = "openai"
	ProviderAnthropic = "anthropic"
	ProviderGemini    = "gemini"
	ProviderLiteLLM   = "litellm"  // OpenAI's API, and LiteLLM's headers and spend logs
	ProviderScripted  = "scripted" // answers from a script; for tests, warm-up and demonstrations
)

// The APIs in which models are called. APIOpenAI includes chat completions and responses.
const (
	APIOpenAI    = "openai"
	APIAnthropic = "anthropic"
	APIGemini    = "gemini"
)

// A Provider is an API that serves models.
type Provider struct {
	Name    string `json:"name" yaml:"name"`
	Kind    string `json:"kind" yaml:"kind" enum:"openai,anthropic,gemini,litellm,scripted"`
	BaseURL string `json:"baseURL,omitempty" yaml:"baseURL" doc:"Base URL without the API's own path: https://api.openai.com/v1"`
	// Credential is the name of a credential of Account; Account "" means local.
	Credential string `json:"credential,omitempty" yaml:"credential"`
	Account    string `json:"account,omitempty" yaml:"account"` // the only account that may use the provider; "": all may
	MaxTokens  string `json:"maxTokensField,omitempty" yaml:"maxTokensField" enum:"max_tokens,max_completion_tokens" doc:"For openai and litellm: the field that limits answers of chats; empty means max_completion_tokens for OpenAI, Azure and LiteLLM, and max_tokens for all others"`
	Script     string `json:"script,omitempty" yaml:"script" doc:"For scripted: path of the script on the host"`
}

// A Model is a model that agents select by its alias.
type Model struct {
	Alias    string `json:"alias" yaml:"alias"`
	Provider string `json:"provider" yaml:"provider" doc:"Name of the provider that serves it"`
	Upstream string `json:"upstream,omitempty" yaml:"upstream" doc:"The provider's name for it; empty means the alias"`
	// Prices is nil if the prices are not known. Calls of a model without prices are refused unless it is Free.
	Prices  *Prices `json:"prices,omitempty" yaml:"prices"`
	Free    bool    `json:"free,omitempty" yaml:"free" doc:"Costs nothing; calls are still counted"`
	Context int64   `json:"context,omitempty" yaml:"context" doc:"Tokens that input and output may have together"`
	Output  int64   `json:"output,omitempty" yaml:"output" doc:"Tokens that an answer may have"`
}

// Prices are the prices of a million tokens each. If CacheRead or CacheWrite is 0, the price of input applies.
type Prices struct {
	Input      USD `json:"input" yaml:"input"`                     // price of a million tokens of input
	Output     USD `json:"output" yaml:"output"`                   // price of a million tokens of output
	CacheRead  USD `json:"cacheRead,omitempty" yaml:"cacheRead"`   // price of a million tokens read from a cache
	CacheWrite USD `json:"cacheWrite,omitempty" yaml:"cacheWrite"` // price of a million tokens written to a cache
}

// A TokenCount is the number of tokens of one call as providers bill them: Input excludes tokens that were read from or
// written to a cache.
type TokenCount struct {
	Input      int64 `json:"input"`
	Output     int64 `json:"output" doc:"Reasoning included"`
	CacheRead  int64 `json:"cacheRead,omitempty"`
	CacheWrite int64 `json:"cacheWrite,omitempty"`
}

// Total returns the sum of all tokens, at most math.MaxInt64.
func (t TokenCount) Total() int64 {
	return addSat(addSat(t.Input, t.Output), addSat(t.CacheRead, t.CacheWrite))
}

// Cost returns the cost of t, rounded up to a nanodollar, and at most math.MaxInt64.
func (p Prices) Cost(t TokenCount) USD {
	read, write := cmp.Or(p.CacheRead, p.Input), cmp.Or(p.CacheWrite, p.Input)
	fresh := addSat(perMillion(p.Input, t.Input), perMillion(p.Output, t.Output))
	return addSat(fresh, addSat(perMillion(read, t.CacheRead), perMillion(write, t.CacheWrite)))
}

// MaxInput returns the highest price of a million tokens of input, whether or not they are in a cache.
func (p Prices) MaxInput() USD { return max(p.Input, p.CacheRead, p.CacheWrite) }

// A ModelGrant lets a sandbox use the model gateway.
type ModelGrant struct {
	Models []string `json:"models" yaml:"models" doc:"Aliases that calls may name; the first replaces any other model, or a missing one"`
	Budget Limits   `json:"budget,omitzero" yaml:"budget" doc:"Limits of all calls of the sandbox together"`
	Rate   Rate     `json:"rate,omitzero" yaml:"rate"`
	// Allow names features that are otherwise removed or refused, because they allow network access or cannot be
	// metered. Its values are those of GrantNames.
	Allow  []string `json:"allow,omitempty" yaml:"allow"`
	Record bool     `json:"record,omitempty" yaml:"record" doc:"Keep prompts and answers, redacted and bounded, in the data directory"`
}

// GatewayUse is the part of a [ModelGrant] that an agent or a request for a run may set, besides models and budget.
type GatewayUse struct {
	Rate   Rate     `json:"rate,omitzero" yaml:"rate" doc:"Maximum of model calls over time"`
	Allow  []string `json:"allow,omitempty" yaml:"allow" maxItems:"4" enum:"provider-tools,remote-urls,beta,server-state" doc:"Features that are otherwise removed or refused"`
	Record bool     `json:"record,omitempty" yaml:"record" doc:"Keep prompts and answers, redacted and bounded, with the sandbox"`
}

// GrantNames are the valid values of ModelGrant.Allow.
var GrantNames = []string{GrantProviderTools, GrantRemoteURLs, GrantBeta, GrantServerState}

// Values of ModelGrant.Allow.
const (
	GrantProviderTools = "provider-tools" // tools that the provider executes: web search and fetch, code, mcp
	GrantRemoteURLs    = "remote-urls"    // images and files that the provider fetches
	GrantBeta          = "beta"           // beta features that a request selects with headers
	GrantServerState   = "server-state"   // ids of objects at the provider, such as stored responses, that the account has created
)

// Rate bounds calls over time; 0 means no limit.
type Rate struct {
	Requests int64 `json:"requestsPerMinute,omitempty" yaml:"requestsPerMinute"`
	Tokens   int64 `json:"tokensPerMinute,omitempty" yaml:"tokensPerMinute"`
}

// ListedPrice is an entry of an imported price list.
type ListedPrice struct {
	Model    string    `json:"model" doc:"The provider's name for it"`
	Provider string    `json:"provider,omitempty"` // "" if the list does not name one
	Prices   Prices    `json:"prices"`
	Context  int64     `json:"context,omitempty"` // tokens that input and output may have together; 0: not known
	Output   int64     `json:"output,omitempty"`  // tokens that an answer may have; 0: not known
	Source   string    `json:"source" doc:"Where the list came from"`
	At       time.Time `json:"at"` // when the list was imported
}

// GatewayModel is a model that the model gateway serves, with the source of its prices.
type GatewayModel struct {
	Model
	Kind        string `json:"kind" doc:"Kind of its provider"`
	PriceSource string `json:"priceSource,omitempty" doc:"config, the source of an imported list, or free"`
	Problem     string `json:"problem,omitempty" doc:"Why calls will be refused; empty if they are not"`
}

// API returns the API in which the model must be called, because the model gateway does not translate; "" if it can be
// called in all of them.
func (m GatewayModel) API() string {
	switch m.Kind {
	case ProviderOpenAI, ProviderLiteLLM:
		return APIOpenAI
	case ProviderAnthropic:
		return APIAnthropic
	case ProviderGemini:
		return APIGemini
	}
	return ""
}

// Models is the service for the models of the model gateway.
type Models interface {
	// ListModels returns the configured models in the order of the configuration.
	ListModels(ctx context.Context) ([]GatewayModel, error)
	// ImportPrices replaces the price list that was imported from source; local callers only. data is LiteLLM's
	// model_prices_and_context_window.json, OpenRouter's list of models, or a JSON list of ListedPrice. ImportPrices returns
	// the number of models in data that have a price.
	ImportPrices(ctx context.Context, source string, data []byte) (int, error)
	// ListPrices returns the imported prices of models whose names contain match, sorted by model.
	ListPrices(ctx context.Context, match string) ([]ListedPrice, error)
}
