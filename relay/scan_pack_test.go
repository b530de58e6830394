package relay

import (
	"bytes"
	"testing"
)

// FuzzScanPack: whatever it is, it ends, and what is taken is within the bounds.
func FuzzScanPack(f *testing.F) {
	f.Add(newPack(1).object(packBlob, "text").sum())
	f.Add(newPack(2).object(packBlob, "text").object(packTree, "").sum())
	p := newPack(2).object(packBlob, "text")
	at := p.header(packOffsetDelta, 3)
	f.Add(p.back(int64(at - 12)).deflate(deltaOf(4, 1, "x")).sum())
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := scanPack(bytes.NewReader(data), packLimits{objects: 10, object: 1000, total: 5000, idSize: 20})
		if err == nil && (n > 10 || len(data) < 32) {
			t.Errorf("%d objects in %d bytes", n, len(data))
		}
	})
}
