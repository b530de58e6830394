package remote

import "context"

type tokenKey struct{}

// withToken returns a context that carries the token of a request to where the request to the gateway is made.
func withToken(ctx context.Context, token string) context.Context {
	return context.WithValue(ctx, tokenKey{}, token)
}

func tokenOf(ctx context.Context) string {
	token, _ := ctx.Value(tokenKey{}).(string)
	return token
}
