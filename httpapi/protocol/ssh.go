package protocol

// SSHUpgrade is the protocol to which the connection of a request for SSH is upgraded.
const SSHUpgrade = "caisson-ssh"

// SSHInfo describes the SSH server of a daemon.
type SSHInfo struct {
	HostKey string `json:"hostKey" doc:"Its public key, as in authorized_keys"`
}
