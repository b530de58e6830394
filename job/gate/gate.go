// Package gate decides which changes of a sandbox may be applied to files of the host, and applies them. The package itself has
// the types that its subpackages share: a [Plan] of [Step]s, each from one [Node] to another, and [Moved].
//
// A workspace is a host directory that a sandbox sees through an overlay:
//
//   - baseline records the directory when it is mounted, hides what may be a secret, and keeps small files for later merges;
//   - overlay copies the sandbox's changes from the overlay's upper directory, so that the same state is reviewed and applied;
//   - compare finds the differences between the baseline and that copy, and whether the host has changed meanwhile;
//   - check decides which changes may be applied;
//   - apply applies a plan to the host directory, undoes it, and recovers after a crash;
//   - fsat opens and reads files relative to descriptors, for the other packages;
//   - jobs lists the worker jobs of these packages.
//
// All input is untrusted: names, contents, attributes, and the order in which they change. Therefore the functions that read
// trees run as jobs of package worker. They receive descriptors of directories, open files only beneath these without following
// symlinks, and have bounds for all input. The exception is overlay.Mark, which lists only names and attributes: it must run with
// the rights of the initial user namespace, because the kernel shows overlay attributes to no other process.
//
// The gate does not depend on sandboxes, accounts or stores.
package gate
