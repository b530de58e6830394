// Package relay is the host-side git service: the git remote that sandboxes clone from and push to, and the path from there to
// the forge. It contains all code that runs git.
//
// A repository consists of three kinds of bare repository on the host. The mirror has the branches and tags of the remote
// ([fetch.Run]). A view is a copy of the granted part of a mirror and contains no other objects ([View]): a git client can
// obtain objects that none of its refs reach, so objects that a sandbox must not read are left out. A store belongs to one
// sandbox: it borrows the objects of a view and holds pushes until they are delivered ([Store], [serve.Run],
// [receive.Run]). [prepare.Run] makes the commits that are delivered, and [push.Run] sends them.
//
// Git parses untrusted content, both from the remote and from the sandbox, so it always runs in a job of package worker: without
// network, without other files, and with resource limits. It reaches a remote over a socket pair. At the other end is the
// transport, a job of package job/relay/transport that has the network and the credential and does not parse git data.
//
// This package creates repositories. Of the packages below it, fetch, serve, receive, prepare and push have one job each, commit
// checks commits, quarantine holds pushed objects until the checks have passed, git runs git, and remote is git's end of the
// connection to the transport.
//
// This package and those below it do not depend on the database, sandboxes or accounts.
package relay
