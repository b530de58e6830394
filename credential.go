package caisson

import (
	"context"
	"time"
)

// A Credential describes a secret that is stored for an account, without its value. Names are those of environment variables
// (ANTHROPIC_API_KEY) or similar: letters, digits, '_', '-' and '.', 1 to 64 characters, starting with a letter.
type Credential struct {
	Name      string     `json:"name"`
	Account   string     `json:"account"`
	Kind      string     `json:"kind,omitempty" doc:"What the name is known to stand for, as \"Anthropic API key\""`
	CreatedAt time.Time  `json:"createdAt"`
	RotatedAt *time.Time `json:"rotatedAt,omitempty" doc:"When its value was last replaced"`
}

// Credentials is the service that manages secrets. Values can be written but not read. All methods act for the account
// of the [Caller] in ctx. Errors: Invalid for invalid names and values (a value is UTF-8 text without NUL, 1 byte to 64
// KiB), NotFound for unknown names, Conflict if the key that encrypts the values is missing or a different one.
type Credentials interface {
	// SetCredential stores a new credential. Conflict if the account has a credential of that name.
	SetCredential(ctx context.Context, name string, value Secret) (*Credential, error)
	// RotateCredential replaces the value of a credential, also in model gateways that use it. NotFound if there is none.
	RotateCredential(ctx context.Context, name string, value Secret) (*Credential, error)
	// MatchCredential reports whether the credential has this value; local callers only, because other clients could use it to
	// guess values. NotFound if there is no such credential.
	MatchCredential(ctx context.Context, name string, value Secret) (bool, error)
	// ListCredentials returns the account's credentials, sorted by name.
	ListCredentials(ctx context.Context) ([]*Credential, error)
	RemoveCredential(ctx context.Context, name string) error
}

// Secrets provides the values of credentials to drivers.
type Secrets interface {
	// Secret returns the value of a credential; NotFound if the account has no such credential, Conflict if it cannot be decrypted.
	Secret(ctx context.Context, account, name string) (Secret, error)
}

// CredentialStore holds credentials with their encrypted values.
type CredentialStore interface {
	// Insert adds a credential and its encrypted value; Conflict if the account has a credential of that name.
	Insert(ctx context.Context, c *Credential, sealed []byte) error
	// Replace changes the encrypted value and sets RotatedAt to at; NotFound if there is no such credential.
	Replace(ctx context.Context, in Scope, name string, sealed []byte, at time.Time) (*Credential, error)
	// Get returns a credential and its encrypted value.
	Get(ctx context.Context, in Scope, name string) (c *Credential, sealed []byte, err error)
	// List returns the credentials of a scope, sorted by account and name.
	List(ctx context.Context, in Scope) ([]*Credential, error)
	Delete(ctx context.Context, in Scope, name string) error
}
