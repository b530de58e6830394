// Package relay is the git remote that sandboxes clone from and push to, and the way from there to the real one: everything that
// runs git.
//
// A repository is three kinds of bare repository on the host. The mirror has the branches and tags of the remote ([Tool.Fetch]).
// A view is a copy of the part of a mirror that somebody was granted, with no object besides ([Tool.View]): git can be made to
// tell of objects that no ref of the asker reaches, so what may not be read is not there. A store is one sandbox's: it borrows
// the objects of a view and is where pushes wait until they may go further ([Tool.Store], [Tool.Serve], [Tool.Receive]).
// [Tool.Prepare] makes the commits that are sent, and [Tool.Push] sends them.
//
// Git parses what strangers wrote, the remote's answers as well as the sandbox's, so it always runs in a sealed job of package
// worker: without network, without other files, and bounded. Its way to a remote is a socket pair, the link, at whose other end a
// job of package relay/transport has the network and the credential and reads no git.
//
// The package itself makes repositories. Below it fetch, serve, receive, prepare and push have a job each, commit checks commits,
// quarantine keeps what was pushed apart until then, git runs git, and remote is the near end of a link.
//
// The relay does not depend on sandboxes, accounts or stores of other kinds.
package relay
