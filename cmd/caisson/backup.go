package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/backup"
	"github.com/caisson-dev/caisson/daemon/engine"
	"github.com/caisson-dev/caisson/internal/durable"
)

// backupCmd writes a backup.
type backupCmd struct {
	File string `arg:"" help:"File to write; it must not exist. - writes to standard output." complete:"file"`
}

func (c *backupCmd) Help() string {
	return "The backup is of one instant and may be made while the daemon runs. It has the store (sandboxes, runs, budgets, what was spent, events), keys, " +
		"credentials, agents, repositories, files that syncs have replaced, and the configuration. It does not include files and memory of sandboxes, volumes, " +
		"images and snapshots. docs/operate.md has the list.\n\nThe file contains all secrets of the data directory. It is created readable for its owner only; keep it that way.\n\n" +
		examples("caisson backup /backup/caisson-2026-11-28", "caisson backup - | age -r age1… > caisson.age")
}

// A backupReport describes a backup for the output of the commands backup and restore.
type backupReport struct {
	File string `json:"file,omitempty"` // path of the backup; "" for standard input or output
	Data string `json:"dataDir"`        // data directory
	backup.Header
	Entries int64        `json:"entries"` // number of files and directories
	Size    caisson.Size `json:"size"`    // size of the backup's contents in bytes
}

// show prints the report.
func (r *backupReport) show(a *app) error {
	key := "in the backup"
	if !r.CredentialKey {
		key = "not in the backup: there is none, or it is configured elsewhere"
	}
	return printOne(a, r, cmp.Or(r.File, r.Data), [][2]string{
		{"File", cmp.Or(r.File, "standard input")}, {"Data", r.Data}, {"Made", formatTime(r.CreatedAt)}, {"Version", r.Version},
		{"Schema", fmt.Sprint(r.Schema)}, {"Contents", fmt.Sprintf("%d files and directories, %s", r.Entries, r.Size)}, {"Key of credentials", key},
	})
}

func (c *backupCmd) Run(ctx context.Context, a *app, d *localDaemon) error {
	if c.File == "-" {
		if isTerminal(a.out) {
			return caisson.Invalidf("file", "a backup is not written to a terminal; name a file, or pipe the output to a program")
		}
		_, err := c.write(ctx, a, d, a.out)
		return err
	}
	if err := c.checkNotExists(); err != nil {
		return err
	}
	// The temporary file, which has mode 0600, gets the name c.File only when the backup is complete.
	f, err := os.CreateTemp(filepath.Dir(c.File), "."+filepath.Base(c.File)+".*"+durable.Part)
	if err != nil {
		return localError("file", filepath.Dir(c.File), err)
	}
	defer os.Remove(f.Name()) // without effect after success, because the file was renamed
	report, err := c.write(ctx, a, d, f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, c.File, unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.EEXIST):
			err = c.checkNotExists()
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS): // NFS, for example, does not support RENAME_NOREPLACE.
			if err = c.checkNotExists(); err == nil {
				err = os.Rename(f.Name(), c.File)
			}
		}
	}
	if err == nil {
		err = durable.Sync(filepath.Dir(c.File))
	}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return caisson.Wrap(err, caisson.Exhausted, "the disk of %s is full; there is no backup", c.File)
	case err != nil:
		return err
	}
	report.File = c.File
	return report.show(a)
}

// checkNotExists returns Conflict if the file c.File exists already.
func (c *backupCmd) checkNotExists() error {
	_, err := os.Lstat(c.File)
	switch {
	case err == nil:
		return caisson.Errorf(caisson.Conflict, "%s exists already; name another file, or - for standard output", c.File)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return localError("file", c.File, err)
}

// write writes a new backup to w, and verifies the backup at the same time.
func (c *backupCmd) write(ctx context.Context, a *app, d *localDaemon, w io.Writer) (*backupReport, error) {
	in, err := c.open(ctx, d)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	p := newProgress(a)
	defer p.end()
	src := &progressReader{r: in, stage: "backing up " + d.cfg.DataDir, show: p.update}
	h, m, err := backup.Verify(ctx, io.TeeReader(src, w))
	if src.err != nil { // src.err is the cause of an incomplete backup; err only says that it is incomplete
		err = src.err
		if _, known := errors.AsType[*caisson.Error](err); !known && ctx.Err() == nil {
			err = caisson.Wrap(err, caisson.Unavailable, "the backup could not be completed: %v; the daemon's log may have the details", err)
		}
	}
	if err != nil {
		return nil, err
	}
	return &backupReport{Data: d.cfg.DataDir, Header: *h, Entries: m.Entries, Size: caisson.Size(m.Bytes)}, nil
}

// open starts a new backup and returns its reader. The daemon makes the backup or, if no daemon is running, this process.
func (c *backupCmd) open(ctx context.Context, d *localDaemon) (io.ReadCloser, error) {
	up, err := isListening(ctx, d.cfg.SocketPath())
	if err != nil {
		return nil, err
	}
	if up {
		api, err := newClient(d.cfg, nil, nil)
		if err != nil {
			return nil, err
		}
		return api.Backup(ctx)
	}
	r, w := io.Pipe()
	go func() {
		w.CloseWithError(engine.Backup(ctx, engine.Config{
			Data:   engine.DataConfig{Dir: d.cfg.DataDir, ConfigFile: d.cfg.File},
			Agents: engine.AgentConfig{Dir: d.cfg.AgentsDir}, Version: buildVersion().Version,
		}, w))
	}()
	return r, nil
}

// progressReader reads from r, and calls show with the number of bytes that were read so far, at most every 100 ms. It stores the
// last error of r.
type progressReader struct {
	r     io.Reader
	n     int64  // number of bytes that were read from r so far
	stage string // name of the operation, as the user sees it
	total int64  // expected number of bytes; 0 if it is unknown
	show  func(caisson.Progress)
	next  time.Time // time from which show is called again
	err   error     // last error of r except io.EOF
}

func (m *progressReader) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	m.n += int64(n)
	if now := time.Now(); now.After(m.next) {
		m.next = now.Add(100 * time.Millisecond)
		m.show(caisson.Progress{Stage: m.stage, Done: m.n, Total: m.total})
	}
	if err != nil && !errors.Is(err, io.EOF) {
		m.err = err
	}
	return n, err
}

// restoreCmd restores a backup.
type restoreCmd struct {
	File string `arg:"" help:"File that caisson backup has written; - reads standard input." complete:"file"`
}

func (c *restoreCmd) Help() string {
	return "The data directory must not exist or must be empty: stop the daemon and move an old directory away first. The whole backup is verified before " +
		"the data directory is created; after an error there is none. Start the daemon as usual; caisson sandbox ls shows the state of each sandbox. " +
		"Spending after the backup is not included. The configuration is written to the directory " + backup.RestoredDir + " of the data directory and is not used.\n\n" +
		"The daemon trusts everything in a backup: restore only files that no other user could write.\n\n" +
		examples("caisson restore /backup/caisson-2026-11-28", "caisson restore --data /srv/caisson /backup/caisson-2026-11-28", "age -d -i key caisson.age | caisson restore -")
}

func (c *restoreCmd) Run(ctx context.Context, a *app, d *localDaemon) error {
	p := newProgress(a)
	src := &progressReader{r: a.in, stage: "restoring " + d.cfg.DataDir, show: p.update}
	if c.File != "-" {
		f, err := openBackup(c.File)
		if err != nil {
			return err
		}
		defer f.Close()
		if info, err := f.Stat(); err == nil {
			src.total = info.Size()
		}
		src.r = f
	}
	up, err := isListening(ctx, d.cfg.SocketPath())
	if err != nil {
		return err
	}
	if up {
		return caisson.Errorf(caisson.Conflict, "a daemon runs for %s; stop it with caisson daemon stop, and move the directory away", d.cfg.DataDir)
	}
	h, m, err := engine.Restore(ctx, src, d.cfg.DataDir)
	p.end()
	if err != nil {
		return engine.DataDirError(d.cfg.DataDir, err)
	}
	r := &backupReport{Data: d.cfg.DataDir, Header: *h, Entries: m.Entries, Size: caisson.Size(m.Bytes)}
	if c.File != "-" {
		r.File = c.File
	}
	if err := r.show(a); err != nil {
		return err
	}
	a.infof("caisson: the configuration that the backup was made with is in %s; compare it with %s", filepath.Join(d.cfg.DataDir, backup.RestoredDir), d.cfg.lookedFor)
	return nil
}

// openBackup opens the backup in the file name. It returns Denied if users other than root and this one can write to the file.
func openBackup(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, localError("file", name, err)
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	const others = 0o022
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = caisson.Invalidf("file", "%s is not a regular file; - reads standard input", name)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid(), st.Mode&others != 0:
		err = caisson.Errorf(caisson.Denied, "users other than root and you can write to %s, and the daemon trusts everything in a backup; if you are sure that it was not changed, chown it and run chmod go-w", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
