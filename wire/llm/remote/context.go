package remote

import "context"

// tokenKey is the context key of the run token (package runtoken) of a request.
type tokenKey struct{}

// withToken returns a context with the run token of a request, which rewrite reads.
func withToken(ctx context.Context, token string) context.Context {
	return context.WithValue(ctx, tokenKey{}, token)
}

// contextToken returns the run token that withToken has put into ctx.
func contextToken(ctx context.Context) string {
	token, _ := ctx.Value(tokenKey{}).(string)
	return token
}
