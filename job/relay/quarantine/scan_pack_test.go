package quarantine

import (
	"bytes"
	"testing"

	"github.com/caisson-dev/caisson/job/relay/packtest"
)

// FuzzScanPack checks that scanPack terminates on any input, and that accepted packs are within the limits.
func FuzzScanPack(f *testing.F) {
	f.Add(packtest.NewPack(1).Object(packBlob, "text").Sum())
	f.Add(packtest.NewPack(2).Object(packBlob, "text").Object(packTree, "").Sum())
	p := packtest.NewPack(2).Object(packBlob, "text")
	at := p.Header(packOffsetDelta, 3)
	f.Add(p.Back(int64(at - 12)).Deflate(packtest.DeltaOf(4, 1, "x")).Sum())
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := scanPack(bytes.NewReader(data), Limits{Objects: 10, Object: 1000, Total: 5000, IDSize: 20})
		if err == nil && (n > 10 || len(data) < 32) {
			t.Errorf("%d objects in %d bytes", n, len(data))
		}
	})
}
