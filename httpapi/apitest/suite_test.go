package apitest

import (
	"context"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/coretest"
)

func TestWorld(t *testing.T) {
	Test(t, func(t *testing.T) (context.Context, Cores) {
		w := coretest.New(t)
		ctx := caisson.WithCaller(context.Background(), caisson.Caller{Account: "local", Local: true})
		return ctx, Cores{w.API(), w, w.Charge}
	})
}
