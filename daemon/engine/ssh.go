package engine

import (
	"path/filepath"

	"github.com/caisson-dev/caisson/daemon/credential"
	"github.com/caisson-dev/caisson/daemon/sshserver"
)

// newSSH constructs the SSH server. Its host key is that of the data directory.
func newSSH(e *Engine) (*sshserver.Server, error) {
	key, _, err := credential.LoadKeyFile(filepath.Join(e.cfg.Data.Dir, "ssh.key"))
	if err != nil {
		return nil, err
	}
	return sshserver.New(sshserver.Config{
		Settings: e.cfg.SSH, FindKey: e.Tokens().FindSSHKey,
		Processes: e.sandboxes.Processes(), Jobs: e.on.Worker, HostKey: key, Log: e.cfg.Log,
	})
}
