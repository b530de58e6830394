package apitest

import (
	"context"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestMemory(t *testing.T) {
	Test(t, func(t *testing.T) (context.Context, Cores) {
		return caisson.WithCaller(context.Background(), caisson.Caller{Account: "local", Local: true}), NewMemory().Cores()
	})
}
