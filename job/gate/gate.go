// Package gate decides what a sandbox may change on the host, and changes it. It stands between what a sandbox wrote and the host's
// files. The package itself has the types that its parts share: a [Plan] of [Step]s, each from one [Node] to another, and [Moved].
//
// A workspace is a host directory that a sandbox sees through an overlay:
//
//   - baseline records the directory when it is mounted, hides what may be a secret, and keeps small files for later merges;
//   - overlay copies what the sandbox has written out of the overlay's upper directory, so that what is reviewed is what is applied;
//   - compare finds the differences between the baseline and that copy, and whether the host has changed meanwhile;
//   - check decides which changes may be applied;
//   - apply applies a plan to the host directory, undoes it, and recovers after a crash;
//   - fsat opens and reads files relative to descriptors, for all of them;
//   - jobs lists the jobs of all of them.
//
// Everything that is read is hostile: names, contents, attributes, and the order in which they change. So the functions that read
// trees run as jobs of package worker. They are given descriptors, open what they need beneath them without following symlinks, and
// have bounds for everything. The exception is overlay.Mark, which must run with the rights of the initial user namespace because the
// kernel shows overlay attributes to no other process, and which only lists names.
//
// The gate does not depend on sandboxes, accounts or stores.
package gate
