package sandboxes

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/undo"
)

// builder runs the set-up steps of templates.
type builder struct {
	planner   *planner             // resolves requests into plans
	accounts  caisson.AccountStore // accounts with their host uids
	admission *admission           // decides whether the host has room
	unstored  *idSet               // ids of sandboxes and captures in use that are not in the store
	processes *processes           // starts and kills processes of sandboxes
	clients   *fileClients         // clients that access files in sandboxes
	dirs      dirs                 // paths and files in the data directory
	images    interface {
		MakeLayer(ctx context.Context, account string, archive *os.File) (digest, dir string, err error)
	}
	runtime interface {
		fileSaver
		execer
	}
}

// build runs the set-up steps of a template in a sandbox of the template's image, and stores the files that they have changed as
// a layer. key is the hash of the build's inputs. rootfs is the image's root file system with this layer on top.
func (b *builder) build(ctx context.Context, tpl *caisson.Template, img *caisson.Image, key string, progress func(caisson.Progress)) (rootfs caisson.Rootfs, err error) {
	p, release, err := b.planner.fresh(ctx, &caisson.CreateRequest{Image: tpl.Image, Env: tpl.Env, Resources: tpl.Resources})
	if err != nil {
		return rootfs, err
	}
	defer release()
	sb := p.sandbox
	sb.Spec.Command, sb.Spec.User, sb.Spec.Workdir = nil, "0:0", "/"
	// The steps have the network access that the template's policy allows. Only templates of the same account use the built
	// layer, because the account is one of the inputs of which key is the hash.
	sb.Spec.Policy = tpl.Policy
	if _, err := b.accounts.Ensure(ctx, sb.Account); err != nil {
		return rootfs, err
	}
	admitted, err := b.admission.admit(ctx, sb, 0)
	if err != nil {
		return rootfs, err
	}
	defer admitted()
	// The sandbox is not stored: the API does not show it, and after a crash CollectGarbage removes it.
	defer b.unstored.hold(sb.ID)()
	var back undo.Stack
	defer func() { err = errors.Join(err, back.Run()) }()
	back.Push(func() error { return b.dirs.removeSandboxDir(context.WithoutCancel(ctx), sb.ID) })
	if err := b.dirs.makeSandboxDir(sb); err != nil {
		return rootfs, err
	}
	if err := b.processes.run(ctx, sb, source{}); err != nil {
		return rootfs, err
	}
	back.Push(func() error { return b.processes.halt(context.WithoutCancel(ctx), sb.ID) })
	for i, step := range tpl.Setup {
		stage := fmt.Sprintf("setup %d/%d", i+1, len(tpl.Setup))
		command := strings.Join(step.Run, " ")
		progress(caisson.Progress{Stage: stage, Detail: command, Done: int64(i), Total: int64(len(tpl.Setup))})
		if err := b.writeSeeds(ctx, sb.ID, step.Files); err != nil {
			return rootfs, err
		}
		if err := b.runStep(ctx, sb, step, func(line string) { progress(caisson.Progress{Stage: stage, Detail: command, Message: line}) }); err != nil {
			return rootfs, err
		}
	}
	progress(caisson.Progress{Stage: "freeze"})
	tar := b.dirs.sandboxPath(sb.ID, filesTar)
	if err := writeFile(tar, func(f *os.File) error { return b.runtime.SaveFiles(ctx, sb.ID, f) }); err != nil {
		return rootfs, err
	}
	f, err := os.Open(tar)
	if err != nil {
		return rootfs, err
	}
	defer f.Close()
	digest, dir, err := b.images.MakeLayer(ctx, sb.Account, f)
	if err != nil {
		return rootfs, err
	}
	sum := sha256.Sum256([]byte(img.Digest + "\n" + digest))
	rootfs = img.Rootfs
	rootfs.Digest = "sha256:" + hex.EncodeToString(sum[:])
	rootfs.Layers = append([]string{dir}, rootfs.Layers...)
	return rootfs, nil
}

// runStep runs one set-up step, and calls line for each line of its output.
func (b *builder) runStep(ctx context.Context, sb *caisson.Sandbox, step caisson.SetupStep, line func(string)) error {
	limit := time.Duration(step.Timeout)
	if limit == 0 {
		limit = stepTimeout
	}
	p, err := b.runtime.Exec(ctx, sb.ID, caisson.RuntimeExec{Command: step.Run, Env: env(sb.Spec.Env), Workdir: "/"})
	if err != nil {
		return err
	}
	proc := limitTime(p, limit)
	defer proc.Close()
	defer context.AfterFunc(ctx, func() {
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = proc.Signal(sctx, int(unix.SIGKILL))
	})()
	var mu sync.Mutex
	one := func(s string) { mu.Lock(); defer mu.Unlock(); line(s) }
	out, errOut := make(chan string, 1), make(chan string, 1)
	go func() { out <- scan(proc.Stdout(), one) }()
	go func() { errOut <- scan(proc.Stderr(), one) }()
	status, err := proc.Wait(ctx)
	// Processes that the step has left running may keep its outputs open. Closing the outputs ends the goroutines that read them.
	defer time.AfterFunc(outputTimeout, func() { proc.Close() }).Stop()
	last := cmp.Or(<-errOut, <-out)
	if err != nil {
		return err
	}
	if !status.Success() {
		return caisson.Errorf(caisson.Invalid, "set-up step %.100q %s; its last output: %.200q", strings.Join(step.Run, " "), status, last)
	}
	return nil
}

// outputTimeout is how long the output of a set-up step may stay open after the step has ended.
const outputTimeout = 2 * time.Second

// maxLine is the maximum length in bytes of a line of a set-up step's output. Longer lines are cut.
const maxLine = 4096

// scan reads r to its end, and calls line for each line that is not empty, cut to maxLine bytes. It returns the last of these
// lines.
func scan(r io.Reader, line func(string)) (last string) {
	br := bufio.NewReaderSize(r, maxLine)
	for {
		b, prefix, err := br.ReadLine()
		if err != nil {
			return last
		}
		s := string(b)
		for prefix && err == nil {
			_, prefix, err = br.ReadLine()
		}
		if s != "" {
			last = s
			line(s)
		}
	}
}

// Limits of the seeds of a template, which are the files that its set-up steps write. The limits apply to all steps together.
// Seeds are stored in the template's row of the database; larger files belong in an image.
const (
	maxSeeds     = 64      // maximum number of files that all steps write
	maxSeedBytes = 4 << 20 // maximum bytes of the contents of the files that all steps write
)

// validateSeeds returns an Invalid error if a file of the set-up steps is not valid, or if all files together exceed maxSeeds or
// maxSeedBytes.
func validateSeeds(steps []caisson.SetupStep) error {
	n, size := 0, 0
	for i, s := range steps {
		for j, f := range s.Files {
			field := fmt.Sprintf("setup[%d].files[%d]", i, j)
			if err := validateSeed(field, f); err != nil {
				return err
			}
			n, size = n+1, size+len(f.Data)
		}
	}
	switch {
	case n > maxSeeds:
		return caisson.Invalidf("setup", "%d files are more than %d; put them into an image", n, maxSeeds)
	case size > maxSeedBytes:
		return caisson.Invalidf("setup", "the files hold more than %s together; put them into an image", caisson.Size(maxSeedBytes))
	}
	return nil
}

// validateSeed returns an Invalid error if the path or the mode of f, a file of a set-up step, is not valid. field is the name of
// the request's field that contains f, for errors.
func validateSeed(field string, f caisson.SeedFile) error {
	if err := validatePath(field+".path", f.Path); err != nil {
		return err
	}
	if f.Path == "" || f.Path == "/" || path.Clean(f.Path) != f.Path {
		return caisson.Invalidf(field+".path", "%.100q is not the absolute path of a file, without . and .. and double slashes", f.Path)
	}
	for _, own := range reservedDirs {
		if f.Path == own || strings.HasPrefix(f.Path, own+"/") {
			return caisson.Invalidf(field+".path", "no file can be written below %s", own)
		}
	}
	if f.Mode > 0o777 {
		return caisson.Invalidf(field+".mode", "%o is more than 777", f.Mode)
	}
	return nil
}

// writeSeeds writes the files of a set-up step in a running sandbox as the guest's root, and creates their parent directories.
func (b *builder) writeSeeds(ctx context.Context, id caisson.ID, files []caisson.SeedFile) error {
	if len(files) == 0 {
		return nil
	}
	client := b.clients.client(id)
	defer client.Close()
	for _, f := range files {
		mode := f.Mode
		if mode == 0 {
			mode = 0o644
		}
		if _, err := client.WriteFile(ctx, f.Path, mode, strings.NewReader(f.Data)); err != nil {
			return fmt.Errorf("write %q for a set-up step: %w", f.Path, err)
		}
	}
	return nil
}
