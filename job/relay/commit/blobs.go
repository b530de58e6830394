package commit

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

// Limits of a batch of a blobQueue.
const (
	batchFiles = 256     // number of files; their object names together fit into a pipe
	batchBytes = 4 << 20 // bytes of all files together, unless a single file is larger
)

// A blobQueue reads files in batches, in about the order in which they will be requested: requesting them from git one by one
// would take longer than all other checks. It is safe for concurrent use.
type blobQueue struct {
	objects *Objects // reads the files
	limit   int64    // bytes of a file; larger files are never requested

	mu     sync.Mutex
	ids    []string          // object names of the expected files, in order
	sizes  []int64           // sizes of the files in ids, in bytes
	index  map[string]int    // indexes in ids, by object name
	next   int               // index of the first id that was not read yet
	unread map[string][]byte // contents of the last batch that were not requested yet, by object name
}

// newBlobQueue returns a queue for files of at most limit bytes.
func newBlobQueue(o *Objects, limit int64) *blobQueue {
	return &blobQueue{objects: o, limit: limit, index: map[string]int{}}
}

// expect adds a file that will be requested, unless it is larger than the limit.
func (q *blobQueue) expect(id string, size int64) {
	if _, twice := q.index[id]; twice || size > q.limit {
		return
	}
	q.index[id] = len(q.ids)
	q.ids, q.sizes = append(q.ids, id), append(q.sizes, size)
}

// read returns the content of a file.
func (q *blobQueue) read(id string) ([]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if data, ok := q.unread[id]; ok {
		delete(q.unread, id)
		return data, nil
	}
	from, known := q.index[id]
	if !known || from < q.next {
		return q.objects.Read(id, "blob", q.limit) // the file was returned before, or was not expected
	}
	end, total := from, int64(0)
	for end < len(q.ids) && end-from < batchFiles && (end == from || total+q.sizes[end] <= batchBytes) {
		total += q.sizes[end]
		end++
	}
	all, err := q.objects.readMany(q.ids[from:end], "blob", q.limit)
	if err != nil {
		return nil, err
	}
	// The unread rest of the previous batch is dropped: it is probably not needed.
	q.unread, q.next = map[string][]byte{}, end
	for i, data := range all[1:] {
		q.unread[q.ids[from+1+i]] = data
	}
	return all[0], nil
}

// readMany returns objects of type typ, which must exist and have at most limit bytes each. The total length of ids must fit into
// a pipe.
func (o *Objects) readMany(ids []string, typ string, limit int64) ([][]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return nil, o.err
	}
	if _, err := io.WriteString(o.in, "contents "+strings.Join(ids, "\ncontents ")+"\n"); err != nil {
		return nil, o.fail(err)
	}
	all := make([][]byte, 0, len(ids))
	for _, id := range ids {
		line, err := o.out.ReadSlice('\n')
		if err != nil {
			return nil, o.fail(err)
		}
		got, size, err := parseInfo(string(line), id)
		if err == nil && (got != typ || size > limit) {
			err = fmt.Errorf("a %s of %d bytes, where a %s was", got, size, typ)
		}
		if err != nil {
			return nil, o.fail(err)
		}
		data := make([]byte, size+1)
		if _, err := io.ReadFull(o.out, data); err != nil {
			return nil, o.fail(err)
		}
		all = append(all, data[:size])
	}
	return all, nil
}
