package httpapi

import (
	"crypto/rand"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// Limits of uploads of descriptors.
const (
	handleLifetime = 60 * time.Second // time after which a descriptor that no request has referred to is closed
	handleLimit    = 512              // maximum number of descriptors in the table, of all accounts
	handleTimeout  = 10 * time.Second // time in which the client must send the descriptors after the upgrade
)

// handleTable holds descriptors between their upload and the request that refers to them.
type handleTable struct {
	mu     sync.Mutex
	closed bool                 // closeAll was called, and add fails; guarded by mu
	files  map[string]*heldFile // open files by id; guarded by mu
}

// heldFile is an open file in a handleTable.
type heldFile struct {
	*os.File
	account string      // the account that may take the file
	expiry  *time.Timer // closes the file after handleLifetime
}

func newHandleTable() *handleTable { return &handleTable{files: map[string]*heldFile{}} }

// add adds files for account and returns their ids. The table then owns the files. If add fails, it closes the files.
func (t *handleTable) add(account string, files []*os.File) ([]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.files)+len(files) > handleLimit {
		closeFiles(files)
		return nil, caisson.Errorf(caisson.Exhausted, "too many directories are being passed; try again in a minute")
	}
	ids := make([]string, len(files))
	for i, f := range files {
		id := rand.Text()
		ids[i] = id
		t.files[id] = &heldFile{f, account, time.AfterFunc(handleLifetime, func() { t.closeFile(id) })}
	}
	return ids, nil
}

// take removes the files with these ids from the table and returns them; the caller then owns them. If one of the ids is unknown,
// has expired, belongs to another account or occurs twice, take returns Invalid and the files stay in the table.
func (t *handleTable) take(account string, ids []string) ([]caisson.Handle, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, id := range ids {
		if h := t.files[id]; h == nil || h.account != account || slices.Contains(ids[:i], id) {
			return nil, caisson.Invalidf(protocol.HandlesHeader, "an id is unknown or has expired; pass the descriptors again")
		}
	}
	taken := make([]caisson.Handle, len(ids))
	for i, id := range ids {
		h := t.files[id]
		h.expiry.Stop()
		delete(t.files, id)
		taken[i] = h.File
	}
	return taken, nil
}

// closeUntaken closes those of the account's files with these ids that were not taken. It is called at the end of the request
// that refers to the files, because an id is valid for one request.
func (t *handleTable) closeUntaken(account string, ids []string) {
	for _, id := range ids {
		t.mu.Lock()
		h := t.files[id]
		t.mu.Unlock()
		if h != nil && h.account == account {
			t.closeFile(id)
		}
	}
}

// closeFile closes the file with this id, if it is still in the table.
func (t *handleTable) closeFile(id string) {
	t.mu.Lock()
	h := t.files[id]
	delete(t.files, id)
	t.mu.Unlock()
	if h != nil {
		h.expiry.Stop()
		h.Close()
	}
}

// closeAll closes all files in the table, and makes later calls of add fail.
func (t *handleTable) closeAll() {
	t.mu.Lock()
	t.closed = true
	ids := slices.Collect(maps.Keys(t.files))
	t.mu.Unlock()
	for _, id := range ids {
		t.closeFile(id)
	}
}

// HandleParam contains the ids of descriptors that the client has passed before, with POST /handles.
type HandleParam struct {
	Handles []string `header:"X-Caisson-Handles" maxItems:"64" doc:"Ids of descriptors passed with POST /handles, in the order of the fields that need them; only over the unix socket"`
}

// handleRoutes receives descriptors. HTTP cannot carry descriptors, so the connection is upgraded to another protocol.
type handleRoutes struct{ table *handleTable }

func (h handleRoutes) register(rt *router) {
	o := postOp("/handles", "pass-handles", "handles", "Pass descriptors of host directories and files (unix socket only)")
	o.Description = "Upgrades the connection to " + protocol.HandlesUpgrade + ": one byte, the number of descriptors, is sent " +
		"with the descriptors as SCM_RIGHTS; the answer is one line of JSON with their ids, which are good for one request within 60 s."
	registerStreamRoute(rt, withResponse(o, http.StatusSwitchingProtocols, "", "The connection now accepts descriptors"), h.receive)
}

// receive upgrades the connection, receives descriptors over it and answers with their ids.
func (h handleRoutes) receive(w http.ResponseWriter, r *http.Request, _ *struct{}) error {
	caller, err := caisson.CallerOf(r.Context())
	if err != nil {
		return err
	}
	if !caller.Local {
		return errHostPath()
	}
	if err := checkUpgrade(r, protocol.HandlesUpgrade); err != nil {
		return err
	}
	up, err := upgrade(w, protocol.HandlesUpgrade)
	if up == nil {
		return err
	}
	defer up.Close()
	conn, ok := up.Conn.(*net.UnixConn)
	if !ok || up.r.Buffered() > 0 {
		// The client has sent data before the upgrade. Descriptors that came with the data were discarded.
		return nil
	}
	conn.SetDeadline(time.Now().Add(handleTimeout))
	var answer protocol.Handles
	files, err := receiveFiles(conn)
	if err == nil {
		answer.Handles, err = h.table.add(caller.Account, files)
	}
	if err != nil {
		answer.Problem = protocol.ProblemOf(err)
	}
	if json.NewEncoder(conn).Encode(answer) != nil {
		for _, id := range answer.Handles {
			h.table.closeFile(id)
		}
	}
	return nil
}

// receiveFiles reads one message with descriptors, and returns them with the flag close-on-exec set. After an error it closes all
// received descriptors.
func receiveFiles(conn *net.UnixConn) ([]*os.File, error) {
	var count [1]byte
	oob := make([]byte, unix.CmsgSpace(protocol.MaxHandles*4))
	n, oobn, flags, _, err := conn.ReadMsgUnix(count[:], oob) // ReadMsgUnix sets MSG_CMSG_CLOEXEC
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid, "no descriptors were received")
	}
	var files []*os.File
	messages, err := syscall.ParseSocketControlMessage(oob[:oobn])
	for _, m := range messages {
		fds, rightsErr := syscall.ParseUnixRights(&m)
		if rightsErr != nil {
			err = rightsErr
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "handle"))
		}
	}
	if err != nil || n != 1 || flags&syscall.MSG_CTRUNC != 0 || len(files) == 0 || len(files) != int(count[0]) {
		closeFiles(files)
		return nil, caisson.Errorf(caisson.Invalid, "a message must contain 1 to %d descriptors and their number", protocol.MaxHandles)
	}
	for _, f := range files {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Mode&unix.S_IFMT != unix.S_IFREG {
			closeFiles(files)
			return nil, caisson.Errorf(caisson.Invalid, "only directories and regular files can be passed")
		}
	}
	return files, nil
}

// closeFiles closes files whose ownership was not passed on.
func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
