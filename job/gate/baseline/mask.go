package baseline

import (
	"slices"

	"github.com/caisson-dev/caisson/internal/namemask"
)

// hiddenByDefault contains the patterns of the files that are hidden from sandboxes by default: files that hold credentials by
// convention.
var hiddenByDefault = []string{
	// Environment files. .env.example and similar names are templates and are shown.
	".env", ".env.*", ".env~", "*.env.local", ".flaskenv",
	// Keys, and certificates that are stored together with keys.
	"*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.p8", ".ssh", ".gnupg",
	"id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk",
	// Logins for package registries.
	".npmrc", ".pypirc", ".gem/credentials", ".cargo/credentials", ".cargo/credentials.toml", ".m2/settings.xml", ".composer/auth.json",
	// Files with logins.
	".netrc", "_netrc", ".git-credentials", ".git/credentials", ".pgpass", ".my.cnf", ".mylogin.cnf", ".htpasswd", ".s3cfg", "rclone.conf", ".boto", ".vault-token",
	".terraformrc", "terraform.rc", ".terraform.d/credentials.tfrc.json",
	// Credentials for clouds, clusters and container registries.
	".aws/credentials", ".aws/config", ".aws/sso", ".aws/cli/cache", ".azure", ".config/gcloud", ".config/doctl", ".config/gh/hosts.yml",
	".config/hub", ".kube/config", "kubeconfig", "*.kubeconfig", ".docker/config.json", ".dockercfg",
	"service-account*.json", "serviceaccount*.json", "service_account*.json", "application_default_credentials.json",
	"credentials.json", "client_secret*.json", "master.key", "wallet.dat",
}

// alwaysShown contains names of files that match a pattern in hiddenByDefault but do not hold secrets.
var alwaysShown = []string{".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults", ".env.test.example"}

// DefaultHidden returns the patterns of files that hold credentials by convention, as an argument for [NewMask].
func DefaultHidden() []string { return slices.Clone(hiddenByDefault) }

// DefaultShown returns the patterns of files that a mask of [NewMask] never hides. It is for packages that match the names of
// files without such a mask.
func DefaultShown() []string { return slices.Clone(alwaysShown) }

// A Mask determines which files of a directory are hidden from a sandbox.
type Mask = namemask.Mask

// NewMask returns a mask that hides the paths that a pattern in hide matches, unless one in show matches too; see [namemask.New].
// Templates (.env.example and similar names) are always shown. Returns Invalid if a pattern is malformed.
func NewMask(hide, show []string) (*Mask, error) {
	return namemask.New(hide, append(slices.Clone(alwaysShown), show...))
}
